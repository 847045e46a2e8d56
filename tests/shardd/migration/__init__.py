"""Tests of live chunk migration on the side of the shards."""
