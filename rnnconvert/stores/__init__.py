"""Models in object stores: found there, fetched, worked on as local files, and put back whole."""
