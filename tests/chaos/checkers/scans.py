"""Scans: a cursor returns each unchanged document exactly once, however long it is open."""

from collections import Counter
from collections.abc import Iterable, Set


def check_scan(found: Iterable[str], standing: Set[str], passing: Set[str] = frozenset()) -> list[str]:
    """The anomalies of one scan.

    Args:
        found: the identities in its batches, in order.
        standing: documents that exist and do not change from before its start until after its end.
        passing: documents that were inserted or removed meanwhile, which may be returned at most once.
    """
    times = Counter(found)
    wrong = {
        "twice": [identity for identity, count in times.items() if count > 1],
        "not at all": [identity for identity in standing if identity not in times],
        "though it never existed": [
            identity for identity in times if identity not in standing and identity not in passing
        ],
    }
    return [
        f"a scan shows {len(identities)} documents {how}: {sorted(identities)[:10]}"
        for how, identities in wrong.items()
        if identities
    ]
