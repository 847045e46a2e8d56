"""Network I/O with trio: frames over sockets, the server, client connections, pools and replica set monitoring."""
