"""Tests of the catalog documents."""
