"""One file per file format: bytes to tensors and back. Nothing here knows what a gate is."""

import os

# HDF5 reads this when it is loaded, so it stands before any import of h5py: no filter plugin, which
# is code, is ever loaded from disk because a file asks for it, or the environment.
os.environ["HDF5_PLUGIN_PRELOAD"] = "::"
