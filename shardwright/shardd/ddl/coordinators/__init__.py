"""Changes of several steps, persisted so that they are finished or undone whatever happens to their coordinator."""
