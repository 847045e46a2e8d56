"""Infrastructure for all daemons, without any sharding: running, logs, metrics, options, commands, and sidecars."""
