"""The deployment page on three hosts, which are namespaces of this machine."""
