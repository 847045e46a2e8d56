"""Tests of the recipient of a migration, against a scripted donor."""
