"""Requests on their way to shards, and the replies read.

Owns which member gets a request, and when it is sent again.
May import `replies` and `routing`.
"""
