"""Where data is and which shards there are, as this router knows it: cached, refreshed, and tried again when stale."""
