"""Tests of the recipient of a migration, against a donor that does what it is told."""
