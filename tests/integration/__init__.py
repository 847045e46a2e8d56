"""The whole system: real clients against a real cluster."""
