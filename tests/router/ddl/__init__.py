"""Tests of what DDL commands of the router make of their shards' replies."""
