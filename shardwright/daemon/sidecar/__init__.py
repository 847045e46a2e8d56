"""What configd and shardd share as sidecars of one mongod: relaying to it, mirroring its hello, following its role.

Owns the connection between a daemon and its mongod; what the daemon does with requests is the daemon's.
May import the files beside it in `daemon`.
"""
