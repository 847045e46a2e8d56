"""Random changes of collections during random writes, moves and balancing, compared with a model of all of it."""
