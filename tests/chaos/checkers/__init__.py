"""Judges of histories: pure functions that take what clients did and were answered, and say what cannot be.

A checker returns the anomalies it finds as sentences, none if all is well. It knows no cluster and does no I/O.
"""
