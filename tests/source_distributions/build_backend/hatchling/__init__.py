"""Stand-in for the build backend of a source distribution whose files alone are needed, see `build`."""
