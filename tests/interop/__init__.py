"""Our router in front of a genuine cluster, and our daemons compared with genuine servers."""
