"""The common part of configd and shardd as sidecars of a mongod: relaying, mirroring its hello, following its role.

Owns the connection between a daemon and its mongod; the daemon decides what to do with requests.
May import `audit`, `commands` and the files beside it in `daemon`.
"""
