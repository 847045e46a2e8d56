"""Catalog reads that are never older than the placement that a daemon has already seen.

A config server that has just become primary has all committed writes, but its commit point may lag. One that is cut off
may still believe itself primary. Both answer majority reads with an older state. So daemons keep the newest config time
they have seen, and read after it.
"""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.sharding.catalog.reads import CatalogRead
from shardwright.sharding.clock import CONFIG_TIME, VectorClock, VectorTime
from shardwright.sharding.timestamps import unpack_timestamp
from shardwright.wire import rawbson

_OPERATION_TIME: Final = b"operationTime"


def read_after(read: CatalogRead, time: VectorTime, milliseconds_max: int, *, as_of: int = 0) -> CatalogRead:
    """Make a read at or after the known config time; a config server that has not reached it waits.

    Args:
        milliseconds_max: total time limit for the config server.
        as_of: a packed cluster time that the read must not be older than either.
    """
    after = max(time.config_time, as_of)
    # A server refuses to wait for a time later than any it has seen.
    command = {**read.command, "maxTimeMS": milliseconds_max, **time.joined(VectorTime(after)).gossip()}
    if after:
        command["readConcern"] = {**command["readConcern"], "afterClusterTime": unpack_timestamp(after)}
    return read._replace(command=command)


def observe_read(clock: VectorClock, body: bytes, fields: Mapping[bytes, rawbson.Span]) -> None:
    """Advance the config time to the catalog time of a majority or snapshot read, given its reply.

    Genuine config servers report it. Otherwise it is the operation time, which for such reads is majority committed.
    Raises as `VectorTime.from_message`.
    """
    clock.observe(body, fields)
    span = fields.get(_OPERATION_TIME)
    if CONFIG_TIME not in fields and span is not None and span[0] == rawbson.TIMESTAMP:
        advance_config_time(clock, int.from_bytes(body[span[2] : span[3]], "little"))


def observe_command(clock: VectorClock, reply: Mapping[str, Any]) -> None:
    """Advance to the times in a config server's reply to a command, if it has any."""
    clock.advance(VectorTime.from_gossip(reply))


def advance_config_time(clock: VectorClock, config_time: int) -> None:
    """Advance to a packed config time, and the cluster time with it, which is never behind."""
    if config_time > clock.time.config_time:
        clock.advance(VectorTime(config_time, config_time))
