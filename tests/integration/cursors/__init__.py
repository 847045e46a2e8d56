"""Cursors: batches, abandonment, slow clients, and operations that are killed."""
