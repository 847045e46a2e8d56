"""TLS of a process: requirements for peers, certificates in use, and names in certificates.

The cryptography is the standard library's ``ssl``; `wire.transport` has the sockets and handshakes. Files that cannot
be used, and contradicting settings, raise TlsConfigurationError, whose message is for the user.

Imports no other room.
"""
