"""The balancer of the config servers' primary: its rounds, and what they read, decide and do.

Owns answering the questions of the policy in `sharding.balancing` and carrying out its decisions.
May import `catalog`, `shards` and `term`.
"""
