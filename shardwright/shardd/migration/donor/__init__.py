"""The donor's side of a migration: it drives, commits and completes the migration."""
