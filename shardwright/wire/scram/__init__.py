"""SCRAM (RFC 5802, RFC 7677), which proves to both client and server that the other side knows a password.

Bytes in, values out: no sockets, no clock, no randomness. Nonces are arguments: random, printable and without commas.
The cryptography is `hashlib`'s and `hmac`'s. `keys` derives the keys, `messages` has the grammar, `client` and `server`
are the two sides. A malformed message, or one of another conversation, raises ScramError.

Imports no other room.
"""
