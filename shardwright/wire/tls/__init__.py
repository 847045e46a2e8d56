"""TLS of a process: requirements for peers, certificates in use, and names in certificates.

The cryptography is the standard library's ``ssl``; `wire.transport` has the sockets and handshakes.

Imports no other room.
"""
