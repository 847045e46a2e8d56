"""Estimates of how long a recipient still needs, by MongoDB's rules."""


def remaining_millis(*, elapsed_millis: int, copied: int, to_copy: int, applied: int, fetched: int) -> int | None:
    """The estimated time until a recipient has applied all that it knows of; None if there is nothing to go by.

    While it clones, the applying of changes is expected to take as long again.

    Args:
        elapsed_millis: how long the present phase, cloning or applying, has taken.
        copied: bytes cloned.
        to_copy: estimated bytes to clone.
        applied: changes applied.
        fetched: changes known.
    """
    if copied < to_copy:
        return None if copied == 0 else elapsed_millis * (to_copy - copied) // copied * 2
    if fetched <= applied:
        return 0
    return None if applied == 0 else elapsed_millis * (fetched - applied) // applied
