"""Resharding on real clusters."""
