"""Shards from the view of the config servers: candidates, clients, hosts.

Owns sending commands to shards, and the conditions for a replica set to become one.
May import `catalog`.
"""
