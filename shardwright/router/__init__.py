"""The mongos of the cluster: sends each operation to the shards that own the data and merges their replies."""
