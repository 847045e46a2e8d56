"""The catalog: reading it, and changing it in transactions, which nobody else does."""
