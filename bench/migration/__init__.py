"""Migration of a range of documents: its throughput, and its effect on clients."""
