"""Access control, TLS, audit, and what logs must not contain."""
