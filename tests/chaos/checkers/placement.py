"""Placement: each document is on the shard that owns its key, and on no other once orphans are deleted."""

from collections.abc import Mapping, Set


def check_placement(stored: Mapping[str, Set[str]], owners: Mapping[str, str]) -> list[str]:
    """Compare what each shard stores with what it should store.

    Args:
        stored: the identities of the documents of each shard.
        owners: the shard that owns each document that must exist.
    """
    anomalies = []
    for identity, owner in owners.items():
        holders = sorted(shard for shard, identities in stored.items() if identity in identities)
        if holders != [owner]:
            anomalies.append(f"{identity!r} belongs on {owner} and is on {', '.join(holders) or 'no shard'}")
    for shard, identities in stored.items():
        anomalies += [f"{shard} has {identity!r}, which should not exist" for identity in identities - owners.keys()]
    return anomalies


def check_found_by_key(documents: Mapping[str, Mapping[str, object]], found: Mapping[str, object]) -> list[str]:
    """Check that the key of each document returned by a scan finds exactly that document."""
    return [
        f"{identity!r} is shown by a scan as {document}, and its key finds {found.get(identity)}"
        for identity, document in documents.items()
        if found.get(identity) != document
    ]
