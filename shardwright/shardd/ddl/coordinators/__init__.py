"""DDL coordinators, persisted so that they are finished or undone after a failover."""
