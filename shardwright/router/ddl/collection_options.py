"""Whether an existing collection is the one that ``create`` asks for.

A mongod refuses to create an existing collection; mongos accepts it if the options are the same. Before they are
compared, omitted options get mongod's defaults, as ``listCollections`` of 6.0.5 shows them.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import bson

from shardwright.sharding.targeting.collation import ICU_DEFAULTS

Options = Mapping[str, Any]

_CAPPED_SIZE_UNIT: Final = 256

_DEFAULTS: Final[Options] = {
    "capped": False,
    "max": 0,
    "temp": False,
    "storageEngine": {},
    "indexOptionDefaults": {},
    "validator": {},
    "validationLevel": "strict",
    "validationAction": "error",
    "viewOn": "",
    "pipeline": [],
    "expireAfterSeconds": None,
    "changeStreamPreAndPostImages": {"enabled": False},
}


def are_options_equal(requested: Options, existing: Options) -> bool:
    """Whether a collection has the options that ``create`` names.

    Args:
        requested: the ``create`` command.
        existing: ``options`` of the collection's entry in ``listCollections``.
    """
    return _canonical(requested) == _canonical(existing)


def _canonical(options: Options) -> bytes:
    """The options that make a difference, defaults filled in, in an order of their own."""
    canonical = {name: options.get(name, default) for name, default in _DEFAULTS.items()}
    canonical["capped"] = bool(canonical["capped"])
    canonical["size"] = _rounded(int(options.get("size") or 0)) if canonical["capped"] else 0
    for name, fill in _FILLED.items():
        value = options.get(name)
        canonical[name] = fill(value) if isinstance(value, Mapping) else value
    return bson.encode(canonical)


def _rounded(size: int) -> int:
    return -(-size // _CAPPED_SIZE_UNIT) * _CAPPED_SIZE_UNIT


def _collation(collation: Options) -> Options | None:
    if collation.get("locale") == "simple":
        return None
    filled = {**ICU_DEFAULTS, **collation}
    filled.pop("version", None)
    return dict(sorted(filled.items()))


def _time_series(options: Options) -> Options:
    filled = {"granularity": "seconds", **options}
    filled.pop("bucketMaxSpanSeconds", None)
    return dict(sorted(filled.items()))


def _clustered_index(index: Options) -> Options:
    return dict(sorted({"v": 2, "name": "_id_", **index}.items()))


_FILLED: Final[Mapping[str, Callable[[Options], Options | None]]] = {
    "collation": _collation,
    "timeseries": _time_series,
    "clusteredIndex": _clustered_index,
}
"""Options that are documents in which mongod fills in what is left out."""
