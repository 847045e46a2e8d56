"""Tests of live chunk migration on the shards."""
