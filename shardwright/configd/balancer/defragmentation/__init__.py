"""Defragmentation of collections, beside the balancer's rounds."""
