"""The proof that a lowered graph computes what the original did."""
