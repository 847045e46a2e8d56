"""Tests of hiding and deleting orphans."""
