"""Tests of what sidecars share."""
