"""Session history: retries of writes that were executed on the donor are answered, not executed again.

Owns reading the history on a donor, and storing and looking it up on a recipient; `operations.retried_writes` answers.
May import `local_mongod`.
"""
