"""TLS of a process: what is asked of peers, which certificates are in use, and who a certificate names.

The cryptography is the standard library's ``ssl``; `wire.transport` has the sockets and handshakes.
Imports no other room.
"""
