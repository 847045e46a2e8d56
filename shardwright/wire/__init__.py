"""The MongoDB wire protocol: framing, raw BSON, error codes, and (in ``wire.transport``) the trio I/O.

Nothing in this package knows that sharding exists. Everything outside ``wire.transport`` is free of I/O: bytes in,
values out.
"""
