"""What Keras puts into its files: readers of each container, and the writer."""
