"""Tests of `router.context`."""
