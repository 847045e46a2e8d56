"""Shardwright: a MongoDB sharded cluster of routers, shard daemons and config daemons, in front of real mongods."""
