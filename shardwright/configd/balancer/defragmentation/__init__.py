"""Defragmentation of collections, alongside the balancer's rounds."""
