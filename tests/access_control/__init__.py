"""Attacks on a closed cluster, and MongoDB's own verdicts compared with ours."""
