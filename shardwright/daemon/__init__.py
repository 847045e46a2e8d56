"""Plumbing for every daemon that knows no sharding: running, logs, metrics, options, sidecars of a mongod."""
