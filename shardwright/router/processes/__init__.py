"""Several router processes behind one port.

Owns the workers, their supervisor, and the requests between them. May import `context` and `cursors`.
"""
