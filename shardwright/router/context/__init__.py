"""What all operations of a router process are given: how it was started, what it knows, how it reaches the shards."""
