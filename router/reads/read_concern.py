"""``readConcern`` of reads that go to several shards."""

from typing import Final

import bson
from bson.timestamp import Timestamp

from sharding.clock import CLUSTER_TIME, signed_cluster_time
from sharding.timestamps import unpack_timestamp
from wire.rawbson import VALUE_CODEC, append, encode_elements, without
from wire.request import Request

READ_CONCERN: Final = b"readConcern"


def is_snapshot(request: Request) -> bool:
    """Whether the read concern level is snapshot."""
    raw = request.raw_object(READ_CONCERN)
    return raw is not None and bson.decode(raw, codec_options=VALUE_CODEC).get("level") == "snapshot"


def at_one_time(request: Request, body: bytes, newest: int) -> tuple[bytes, Timestamp | None]:
    """A command for several shards that makes all of them read at the same time, if its level is snapshot.

    The time is ``atClusterTime`` if the client names it, or else the newest that the router knows, which is not before
    the client's ``afterClusterTime``.

    Args:
        request: the client's command.
        body: what the shards are sent.
        newest: the newest cluster time known, packed; 0 if there is none.

    Returns:
        What to send, and the time; the body as it was and None for another level.
    """
    raw = request.raw_object(READ_CONCERN)
    if raw is None:
        return body, None
    concern = bson.decode(raw, codec_options=VALUE_CODEC)
    if concern.get("level") != "snapshot":
        return body, None
    time = concern.get("atClusterTime")
    if not isinstance(time, Timestamp):
        after = concern.get("afterClusterTime")
        times = [unpack_timestamp(newest)] if newest else []
        time = max([*times, after] if isinstance(after, Timestamp) else times, default=None)
        if time is None:
            return body, None
    # A mongod refuses to read at a time that it has not heard of, so it is told of one that is not before.
    heard = max(time, unpack_timestamp(newest)) if newest else time
    elements = {
        "readConcern": {"level": "snapshot", "atClusterTime": time},
        "$clusterTime": signed_cluster_time(heard),
    }
    return append(without(body, (READ_CONCERN, CLUSTER_TIME)), encode_elements(elements)), time
