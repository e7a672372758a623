"""The proof that a converted Keras model computes what the original did."""
