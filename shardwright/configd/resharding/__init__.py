"""Resharding: the coordinator of an operation, which leads donors and recipients from state to state.

Owns ``config.reshardingOperations``, and the entries and chunks of the collections that are being resharded.
May import `catalog` and `term`.
"""
