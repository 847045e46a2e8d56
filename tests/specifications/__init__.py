"""MongoDB's specifications for drivers, run with their own test files."""
