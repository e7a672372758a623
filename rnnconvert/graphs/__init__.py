"""TensorFlow graphs with cuDNN ops: SavedModels, frozen graphs and MetaGraphs."""
