"""Random changes of collections beside random writes, moves and balancing, compared with a model of all of it."""
