"""The donor of a migration: the shard that gives a range, and that decides with the config servers what becomes of it."""
