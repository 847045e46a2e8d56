"""The recovery token in the replies to statements of a transaction."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.usual_reply import cluster_time_of_usual, with_elements_before_times
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, with_body
from shardwright.wire.rawbson import decode_document, decode_value, encode_elements, from_elements, index

_WRITE_ERRORS: Final = b"writeErrors"
_SHORT_BYTES_MAX: Final = 65_536
"""Longer replies have few fields for their length, so that walking over those is quicker than a search."""

_CLUSTER_TIME: Final = b"$clusterTime"
_KNOWN_SHARDS_MAX: Final = 1_024


def token_of(recovery_shard: str | None) -> dict[str, str]:
    """The token by which another router finds out what became of a transaction; empty while nothing was written.

    Args:
        recovery_shard: the shard that will know.
    """
    return {} if recovery_shard is None else {"recoveryShardId": recovery_shard}


@lru_cache(_KNOWN_SHARDS_MAX)
def token_element(recovery_shard: str | None) -> bytes:
    """The raw element ``recoveryToken``, see `token_of`."""
    return encode_elements({"recoveryToken": token_of(recovery_shard)})


def with_recovery_token(reply: Reply, recovery_shard: str | None) -> tuple[Reply, int]:
    """A successful reply with a recovery token, and the code of the first item error that it reports, 0 if none.

    Args:
        reply: the reply.
        recovery_shard: of the transaction; None while there is none.

    Raises:
        CommandError: the reply is a shard's error, which was to be passed on.
    """
    if reply is None:
        return None, 0
    if isinstance(reply, dict):
        return {**reply, "recoveryToken": token_of(recovery_shard)}, _first_code(reply.get("writeErrors"))
    if len(reply) <= _SHORT_BYTES_MAX and cluster_time_of_usual(reply) and _WRITE_ERRORS not in reply:
        return with_elements_before_times(reply, token_element(recovery_shard)), 0
    body = OpMsg(reply).body
    fields = index(body)
    ok = fields.get(b"ok")
    if ok is None or not decode_value(body, ok):
        raise CommandError.from_reply(decode_document(body))
    # Before the times, which are expected at the end.
    at = fields[_CLUSTER_TIME][1] if _CLUSTER_TIME in fields else len(body) - 1
    elements = b"".join((body[4:at], token_element(recovery_shard), body[at:-1]))
    failures = fields.get(b"writeErrors")
    return with_body(reply, from_elements(elements)), 0 if failures is None else _first_code(
        decode_value(body, failures)
    )


def _first_code(failures: Sequence[Mapping[str, Any]] | None) -> int:
    return int(failures[0]["code"]) if failures else 0
