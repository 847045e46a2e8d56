"""The request of a router for the time of a shard's last acknowledged write.

A change stream starts after all that has been acknowledged when the client's command arrives, and before all that is
written later. The ``operationTime`` in a mongod's reply to a ping is too late for that: the mongod may execute writes
that arrive after the ping before it.

A shard that lists `ACKNOWLEDGED_TIME` among the ``extensions`` of its hello answers a ping with this field before it
acknowledges another write. The ``operationTime`` of the reply is then at least that of each write that it has
acknowledged, and earlier than that of each write that reaches the shard after the ping.
"""

from typing import Final

from shardwright.wire.rawbson import BOOL, element

ACKNOWLEDGED_TIME: Final = b"acknowledgedTime"
ACKNOWLEDGED_TIME_ELEMENT: Final = element(ACKNOWLEDGED_TIME, BOOL, b"\1")
