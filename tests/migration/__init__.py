"""Live chunk migration on real clusters: under load, and with processes paused or killed at each step."""
