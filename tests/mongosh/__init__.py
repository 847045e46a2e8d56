"""Scripted mongosh sessions against a real cluster."""
