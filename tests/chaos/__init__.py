"""Random moves, kills and pauses under a workload whose every answer is checked; ``make chaos`` runs it for long."""
