"""Orphans: documents on this shard that it does not own, which operations must not see.

Owns the ranges that may hold orphans (`range_deletion_tasks`), the filters that hide them (`ownership_filter`), and
fencing cursors. `filtered_commands` adds the filter to an operation. A cursor that may outlive the ownership of its
documents gets a complete filter (`cursor_kinds`). An arriving range is hidden from open cursors (`fenced_cursors`),
and `filtered_queries` also removes the filter from replies. The room `range_deleter` deletes orphans.
May import `local_mongod`.
"""
