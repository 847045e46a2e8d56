"""What configd and shardd share as sidecars of a mongod: relaying to it, mirroring its hello, following its role.

Owns the connection between a daemon and its mongod; the daemon decides what to do with requests. May import `audit`,
`commands` and the files beside it in `daemon`.
"""
