"""Processes that die, freeze, restart or arrive while clients use the cluster."""
