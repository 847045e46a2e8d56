"""One request to one or several shards, and what their replies say."""
