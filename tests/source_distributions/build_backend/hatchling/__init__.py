"""Stands in for the build backend of a source distribution of which only its files are wanted, see `build`."""
