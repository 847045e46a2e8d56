"""The shard daemon: checks versions, admits operations and forwards them to its mongod."""
