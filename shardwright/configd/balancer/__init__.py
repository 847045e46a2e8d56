"""The balancer of the config servers' primary: its rounds, with their reads, decisions and actions.

`cluster_view` reads the cluster for the policy in `sharding.balancing`, and answers its queries about chunks.
`balancer` has the rounds, and `defragmenter` the defragmentation of collections alongside them. `commands_scheduler`
sends requests to shards, for the balancer and for users' commands.
May import `catalog` and `term`.
"""
