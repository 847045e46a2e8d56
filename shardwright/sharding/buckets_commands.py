"""Commands on a sharded time-series collection, as commands on the collection of its buckets and back."""

from typing import Final

from shardwright.sharding.time_series import BUCKETS_PREFIX, IS_TIME_SERIES_NAMESPACE
from shardwright.wire.rawbson import BOOL, append, decode_value, element, index, string_value, with_value, without

_IS_TIME_SERIES: Final = element(IS_TIME_SERIES_NAMESPACE, BOOL, b"\1")


def on_buckets(body: bytes) -> bytes:
    """The same command, naming the buckets and saying that its arguments are about measurements."""
    return append(_renamed(body, BUCKETS_PREFIX + _collection(body)), _IS_TIME_SERIES)


def on_measurements(body: bytes) -> bytes:
    """The command from which `on_buckets` has made this one."""
    return _renamed(without(body, (IS_TIME_SERIES_NAMESPACE,)), _collection(body).removeprefix(BUCKETS_PREFIX))


def _collection(body: bytes) -> str:
    return str(decode_value(body, next(iter(index(body).values()))))


def _renamed(body: bytes, collection: str) -> bytes:
    return with_value(body, next(iter(index(body).values())), string_value(collection))
