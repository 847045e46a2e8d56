"""Orphans: documents on this shard that it does not own. They are hidden from operations, and deleted in the end."""
