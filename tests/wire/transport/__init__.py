"""Tests of the trio side of the wire, over real sockets."""
