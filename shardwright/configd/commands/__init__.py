"""The commands of the config server, a file for each family, and the table of all of them.

Owns their arguments and replies.
May import `balancer`, `catalog`, `term`, `resharding`, `shards` and `user_writes`.
"""
