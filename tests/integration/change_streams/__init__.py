"""Change streams of collections, databases and the cluster."""
