"""The client of the config servers that routers and shards share. Independent of the daemons."""
