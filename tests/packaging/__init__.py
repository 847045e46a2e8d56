"""Tests of what packages install beside the programs."""
