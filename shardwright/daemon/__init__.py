"""Infrastructure for all daemons, without any sharding: running, logs, metrics, options, sidecars of a mongod."""
