"""The shards as the config servers deal with them: candidates, clients, hosts.

Owns what is sent to shards, and who may become one.
May import `catalog`.
"""
