"""How the config servers deal with shards: candidates, clients, hosts.

Owns sending commands to shards, and deciding which replica set may become one.
May import `catalog`.
"""
