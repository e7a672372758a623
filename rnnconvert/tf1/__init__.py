"""RNN stacks in TensorFlow 1's checkpoints: found by their names, read through `layouts`."""
