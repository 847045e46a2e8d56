"""The config daemon: keeps the catalog of the cluster, and is the only one that writes where data is placed."""
