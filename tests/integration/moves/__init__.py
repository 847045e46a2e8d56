"""Chunk moves and balancing under reads and writes."""
