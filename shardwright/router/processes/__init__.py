"""Several router processes behind one port.

Owns the workers, their supervisor, and what they ask each other.
May import `context` and `cursors`.
"""
