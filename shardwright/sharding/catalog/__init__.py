"""The documents of the catalog, in the schemas of MongoDB 6.0, and the reads of them.

Each is a frozen dataclass with ``from_document`` and ``to_document``. The former raises NoSuchKey or TypeMismatch for a
malformed document. The latter writes the fields in MongoDB's order and with its BSON types. Chunks are in
`sharding.chunks`.

May import the files beside it in `sharding`.
"""
