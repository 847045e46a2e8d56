"""Tests of the shard daemon."""
