"""Tests of how the router's DDL commands merge the shards' replies."""
