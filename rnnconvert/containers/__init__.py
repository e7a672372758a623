"""One file per file format: bytes to tensors and back. Nothing here knows what a gate is."""
