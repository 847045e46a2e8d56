"""Session history: retryable writes that were executed on the donor are answered, not repeated, by the recipient."""
