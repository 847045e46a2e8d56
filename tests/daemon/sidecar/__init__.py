"""Tests of the code that sidecars share."""
