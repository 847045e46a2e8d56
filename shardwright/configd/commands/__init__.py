"""The commands of the config server, a file for each family, and the table of all of them.

Owns their arguments and replies, the conditions for a replica set to become a shard, the dry runs of the balancer, and
the coordinator that blocks the writes of users on all servers.
May import `balancer`, `catalog`, `term` and `resharding`.
"""
