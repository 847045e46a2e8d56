"""The balancer of the config servers' primary: its rounds, with their reads, decisions and actions.

Owns the answers to the queries of the policy in `sharding.balancing`, and the execution of its decisions.
May import `catalog`, `shards` and `term`.
"""
