"""Session history: retryable writes that were executed on the donor are answered, not repeated.

Owns how that history is read on a donor, and kept and looked up on a recipient.
May import `local_mongod`.
"""
