"""Tests of `sharding`."""
