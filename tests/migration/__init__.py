"""Live chunk migration on real clusters: moved under load, stopped at each step, killed at each step."""
