"""What configd and shardd share as sidecars of one mongod: relaying to it, mirroring its hello, following its role."""
