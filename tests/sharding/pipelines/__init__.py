"""Tests of pipelines as far as targeting needs them."""
