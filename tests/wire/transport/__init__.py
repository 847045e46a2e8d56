"""Tests of `wire.transport` over real sockets."""
