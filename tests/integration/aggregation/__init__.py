"""Aggregations through the router: results, errors, outputs, and the memory that they take."""
