"""Several router processes behind one port."""
