"""The shards as the config servers deal with them: candidates, clients, hosts."""
