"""Random moves, kills and pauses under workloads whose every reply is checked; ``make chaos`` runs it for long."""
