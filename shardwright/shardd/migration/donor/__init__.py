"""The donor of a migration: the shard that gives a range, and that finds out whether it has been given away."""
