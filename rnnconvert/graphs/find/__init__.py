"""Which cuDNN ops a graph has, and what is known of each: sizes, axes, parameters."""
