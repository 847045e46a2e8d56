"""Numbers for the daemon's own operations, such as migrations, among the operations of its mongod."""

from itertools import count
from typing import Final

_OPID_FIRST: Final = 2_000_000_000
"""mongod numbers its operations from 1, so these numbers cannot collide with its own."""

_opids = count(_OPID_FIRST)


def new_opid() -> int:
    """An unused number under which ``currentOp`` can show an operation and ``killOp`` can end it."""
    return next(_opids)
