"""Operation ids for the daemon's own operations, such as migrations, distinct from mongod's."""

from itertools import count
from typing import Final

_OPID_FIRST: Final = 2_000_000_000
"""First id. mongod counts from 1, so its ids do not reach this."""

_opids = count(_OPID_FIRST)


def new_opid() -> int:
    """Return an unused id for ``currentOp`` and ``killOp``."""
    return next(_opids)
