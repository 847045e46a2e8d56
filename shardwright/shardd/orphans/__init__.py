"""Orphans: documents on this shard that it does not own, which operations must not see.

Owns the ranges that may hold orphans (`range_deletion_tasks`), the filters that hide them (`ownership_filter`), and
fencing cursors. Way through: an operation gets the filter in `filtered_commands`, a cursor that may outlive the
ownership of its documents gets a complete one (`cursor_openings`), a range that arrives is hidden from open cursors
(`fenced_cursors`), and `filter_in_replies` removes the filter from replies. The room `range_deleter` deletes orphans.
May import `local_mongod`.
"""
