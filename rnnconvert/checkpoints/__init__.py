"""RNN stacks in TensorFlow checkpoints: found by name and graph, read, converted, proved."""
