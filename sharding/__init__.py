"""What all daemons say about sharding, pure and without I/O: keys and their order, ranges, versions, routing, targeting."""
