"""What commands on collections, indexes and databases have in common; all of it but `router.ddl.send` does no I/O."""
