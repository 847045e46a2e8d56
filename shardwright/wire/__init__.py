"""The MongoDB wire protocol: framing, raw BSON, error codes, and (in ``wire.transport``) the trio I/O.

This package does not depend on sharding. Modules outside ``wire.transport`` do no I/O: bytes in, values out.
"""
