"""The shard daemon: checks versions, admits operations and passes them to the mongod behind it."""
