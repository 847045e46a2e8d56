"""Network I/O with trio: frames over sockets, the server, client connections, pools and replica set monitoring.

Owns all sockets of all daemons, and every wait for one. May import `rawbson` and the files beside it in `wire`.
"""
