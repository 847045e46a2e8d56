"""The router: what mongos is. It sends each operation to the shards that own the data and merges their replies."""
