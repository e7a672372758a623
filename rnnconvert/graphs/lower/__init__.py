"""A cuDNN op becomes ordinary ops that run on any machine."""
