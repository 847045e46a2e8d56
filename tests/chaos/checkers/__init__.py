"""Checkers of histories: pure functions that take clients' operations and replies, and report contradictions.

A checker returns the anomalies it finds as sentences. It knows no cluster and does no I/O.
"""
