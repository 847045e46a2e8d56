"""The topology of a replica set, and which of its members may serve an operation: state, without I/O or clocks.

It follows MongoDB's Server Discovery and Monitoring and Server Selection specifications for replica sets.
May import the files beside it in `wire`.
"""
