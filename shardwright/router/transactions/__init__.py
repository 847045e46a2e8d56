"""Transactions of clients and of the router itself: what each shard is sent in one, and how it ends.

Owns `RouterTransaction`, the table of sessions with transactions, the sender used inside of them, commit and abort.
May import `replies` and `sending`.
"""
