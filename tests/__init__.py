"""The tests; folders mirror the packages, and tests that need real processes share the fixtures of `conftest`."""
