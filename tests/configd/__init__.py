"""Tests of the config daemon."""
