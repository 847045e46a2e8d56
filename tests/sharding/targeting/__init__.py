"""Tests of `sharding.targeting`."""
