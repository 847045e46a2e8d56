"""Alerts, logs, configuration and addresses, as operators see them."""
