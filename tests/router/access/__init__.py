"""Tests of `router.access`."""
