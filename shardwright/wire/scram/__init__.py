"""SCRAM (RFC 5802, RFC 7677), which proves to both client and server that the other side knows a password.

Bytes in, values out: no sockets, no clock, no randomness; nonces are arguments. The cryptography is `hashlib`'s and
`hmac`'s. `keys` derives the keys, `messages` has the grammar, `client` and `server` are the two sides.

Imports no other room.
"""
