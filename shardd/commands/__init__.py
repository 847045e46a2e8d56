"""The commands of the shard daemon, one module for each or for a small family."""
