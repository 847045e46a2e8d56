"""The commands of the config server, one module each; importing this package registers them all."""

from configd.commands import add_shard, create_database

__all__ = ["add_shard", "create_database"]
