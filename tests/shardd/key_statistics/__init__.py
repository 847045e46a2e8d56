"""Tests of `shardd.key_statistics`."""
