"""The config servers, as routers and shards alike use them over the wire. Knows no daemon."""
