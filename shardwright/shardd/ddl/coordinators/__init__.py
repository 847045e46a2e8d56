"""Changes of several steps, persisted so that they are finished or undone even if their coordinator fails."""
