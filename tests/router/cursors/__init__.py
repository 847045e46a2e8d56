"""Tests of open cursors."""
