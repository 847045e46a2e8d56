"""Sessions, cluster times and transactions."""
