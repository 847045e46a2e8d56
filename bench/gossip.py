"""The cost of gossiping and signing cluster times on the path of a point read, in CPU time of the router.

The steps are measured by themselves, since no router can do without them: reading the time in a shard's reply, signing
it for the client, and telling the shard a time. They are compared with a whole point find (`bench.workloads`).
"""

from collections.abc import Callable
from time import process_time
from typing import Any, Final

import bson
from bson.int64 import Int64
from bson.timestamp import Timestamp

from bench.plan import request
from shardwright.router.replies.usual_reply import cluster_time_of_usual, signed
from shardwright.sharding.clock import VectorClock, signed_cluster_time, with_cluster_time
from shardwright.sharding.signing_keys import SigningKey, SigningKeys
from shardwright.sharding.time_signer import TimeSigner
from shardwright.sharding.timestamps import pack_timestamp
from shardwright.wire.message import op_msg

_REPEATS: Final = 100_000
_NOW: Final = Timestamp(1_700_000_000, 1)
_LATER: Final = Timestamp(2_000_000_000, 0)


def measure_gossip() -> dict[str, float]:
    """Measure the steps and print them; microseconds of CPU time by step."""
    clock, signer = VectorClock(), TimeSigner(_keys())
    clock.observe_cluster_time(pack_timestamp(_NOW))
    find = request({"find": "c", "filter": {"key": 1}, "limit": 1, "singleBatch": True, "$db": "bench"}).data
    times = {"$clusterTime": signed_cluster_time(_NOW), "operationTime": _NOW}
    cursor: dict[str, Any] = {"firstBatch": [{"key": 1, "text": "x" * 200}], "id": Int64(0), "ns": "bench.c"}
    reply = op_msg(bson.encode({"cursor": cursor, "ok": 1.0, **times}), request_id=1)
    assert cluster_time_of_usual(reply)
    assert signed(reply, signer) != reply
    steps: dict[str, Callable[[], object]] = {
        "telling the shard": lambda: with_cluster_time(find, clock),
        "learning from the reply": lambda: clock.observe_cluster_time(cluster_time_of_usual(reply)),
        "signing the reply": lambda: signed(reply, signer),
    }
    results = {name: _microseconds(step) for name, step in steps.items()}
    results["all"] = sum(results.values())
    print("\ngossip and signing of one point find, CPU us of the router")
    print("  " + ", ".join(f"{name} {microseconds:.2f}" for name, microseconds in results.items()))
    return results


def _keys() -> SigningKeys:
    return SigningKeys([SigningKey(1, bytes(range(20)), pack_timestamp(_LATER))])


def _microseconds(step: Callable[[], object]) -> float:
    """The CPU time of a step, without that of the loop."""

    def nothing() -> None:
        return None

    return max(0.0, _loop(step) - _loop(nothing))


def _loop(step: Callable[[], object]) -> float:
    began = process_time()
    for _ in range(_REPEATS):
        step()
    return (process_time() - began) / _REPEATS * 1e6
