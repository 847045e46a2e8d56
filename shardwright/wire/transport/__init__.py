"""The trio side of the wire: frames over sockets, the server, client connections, pools and replica set monitoring."""
