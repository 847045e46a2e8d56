"""The topology of a replica set, and the selection of members for an operation: state, without I/O or clocks.

Follows MongoDB's Server Discovery and Monitoring and Server Selection specifications for replica sets.

May import the files beside it in `wire`.
"""
