"""Copying the unsharded collections of a database to another shard while clients use them (``movePrimary``)."""
