"""CPU time of gossiping and signing cluster times for a point read in the router.

The steps are measured by themselves, because no router can omit them. The router checks the time that a client gossips
and forwards it to the shard, or else sends its own time. It reads the time in the shard's reply, and signs it for the
client. The sums are compared with the CPU time of a whole point find (`bench.workloads`).
"""

from collections.abc import Callable
from contextlib import suppress
from time import process_time
from typing import Any, Final

import bson
from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from bench.plan import request
from shardwright.router.context.client_times import ClientTimes
from shardwright.router.replies.reply_builder import cluster_time_of_usual, signed
from shardwright.sharding.clock import CLUSTER_TIME, VectorClock, VectorTime, signed_cluster_time, with_cluster_time
from shardwright.sharding.cluster_time import SigningKey, SigningKeys, TimeSigner, pack_timestamp, proof_of
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request

_REPEATS: Final = 100_000
_NOW: Final = Timestamp(1_700_000_000, 1)
_LATER: Final = Timestamp(2_000_000_000, 0)
_KEY: Final = SigningKey(1, bytes(range(20)), pack_timestamp(_LATER))
_FIND: Final[dict[str, Any]] = {"find": "c", "filter": {"key": 1}, "limit": 1, "singleBatch": True, "$db": "bench"}
_DRIFT_SECONDS_MAX: Final = 2**31


def measure_gossip() -> dict[str, float]:
    """Measure the steps and print them; microseconds of CPU time by step.

    A client usually gossips the router's own time, from the last reply, which takes a single comparison.
    """
    clock, signer = VectorClock(), TimeSigner(SigningKeys([_KEY]))
    clock.observe_cluster_time(pack_timestamp(_NOW))
    find = request(_FIND).data
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
    same = _microseconds(_exchanging(signer, 0))
    for name, seconds in (("an older time of the client", -1), ("a newer time of the client", 1)):
        results[name] = _microseconds(_exchanging(signer, seconds)) - same
    results["all"] = sum(results[name] for name in steps)
    checked = results["a newer time of the client"]
    results["all, with a newer time"] = results["all"] - results["telling the shard"] + checked
    print("\ngossip and signing of one point find, CPU us of the router")
    for name, microseconds in results.items():
        print(f"  {name:<42} {microseconds:.2f}")
    return results


def _exchanging(signer: TimeSigner, seconds: int) -> Callable[[], object]:
    """Return a function that reads a find and uses its gossiped time.

    Request and clock are made again each time, because the exchange changes both.

    Args:
        seconds: difference of the gossiped time to the router's clock.
    """
    time, before = Timestamp(_NOW.time + seconds, 1), VectorTime(pack_timestamp(_NOW))
    signature = {"hash": Binary(proof_of(_KEY, pack_timestamp(time))), "keyId": Int64(_KEY.id)}
    gossip = {"$clusterTime": {"clusterTime": time, "signature": signature}}
    frame = op_msg(bson.encode({**_FIND, **gossip}), request_id=1)

    async def refresh_keys() -> None:
        raise AssertionError("the key is known")

    def exchange() -> None:
        found = Request(OpMsg(frame))
        span = found.fields[CLUSTER_TIME]
        clock = VectorClock(before)
        times = ClientTimes(clock, signer, refresh_keys, _DRIFT_SECONDS_MAX)
        if not clock.is_at(found.body, span):
            with suppress(StopIteration):
                times.exchange(found, span).send(None)

    return exchange


def _microseconds(step: Callable[[], object]) -> float:
    """Return the CPU time of a step, without the loop's own."""

    def nothing() -> None:
        return None

    return max(0.0, _loop(step) - _loop(nothing))


def _loop(step: Callable[[], object]) -> float:
    began = process_time()
    for _ in range(_REPEATS):
        step()
    return (process_time() - began) / _REPEATS * 1e6
