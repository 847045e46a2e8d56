"""DDL operations on live collections, alone and in conflict with each other."""
