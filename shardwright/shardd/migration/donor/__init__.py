"""The donor's side of a migration: it drives the migration, has it committed, and completes it."""
