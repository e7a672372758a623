"""Proof of a conversion, level by level: the bits, the layers' functions, the whole models."""
