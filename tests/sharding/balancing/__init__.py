"""Tests of the balancer's policy."""
