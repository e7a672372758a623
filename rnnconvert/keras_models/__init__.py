"""Keras models in any container: HDF5, .keras, SavedModel, weights files."""
