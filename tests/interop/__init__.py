"""Our router in front of a genuine cluster, and our daemons beside genuine servers."""
