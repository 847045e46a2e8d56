"""``shardwright sync``: its rates, its lag, its memory and the pause of a commit."""
