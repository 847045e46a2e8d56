"""The vocabulary of all daemons, pure and without I/O: keys and their order, ranges, versions, routing, targeting."""
