"""Sending requests to shards, and reading the replies.

Owns the choice of the member that gets a request, and its repetition.
May import `replies` and `routing`.
"""
