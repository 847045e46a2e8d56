"""Open cursors: what the router keeps between a ``find`` and its last ``getMore``."""
