"""Moving a range of documents: how fast it goes, and what clients notice of it."""
