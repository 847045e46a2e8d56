"""The config daemon: maintains the cluster's catalog, and is the only daemon that changes the placement of data."""
