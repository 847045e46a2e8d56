"""Tests of the options of daemons and their sources."""
