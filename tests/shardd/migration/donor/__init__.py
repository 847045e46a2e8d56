"""The donor of a migration."""
