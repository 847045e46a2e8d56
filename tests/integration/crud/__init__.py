"""Reads and writes of documents through the router, as stock drivers send them."""
