"""The recovery token in the replies to statements of a transaction."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.router.replies.own_reply import Reply
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import Header
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import decode_document, decode_value, encode_elements, from_elements, index

_CLUSTER_TIME = b"$clusterTime"


def with_recovery_token(reply: Reply, token: Mapping[str, str]) -> tuple[Reply, int]:
    """A successful reply with a recovery token, and the code of the first item error that it reports, 0 if none.

    Args:
        reply: the reply.
        token: from the transaction.

    Raises:
        CommandError: the reply is a shard's error, which was to be passed on.
    """
    if reply is None:
        return None, 0
    if isinstance(reply, dict):
        return {**reply, "recoveryToken": token}, _first_code(reply.get("writeErrors"))
    body = OpMsg(reply).body
    fields = index(body)
    ok = fields.get(b"ok")
    if ok is None or not decode_value(body, ok):
        raise CommandError.from_reply(decode_document(body))
    # Before the times, which are expected at the end.
    at = fields[_CLUSTER_TIME][1] if _CLUSTER_TIME in fields else len(body) - 1
    elements = b"".join((body[4:at], encode_elements({"recoveryToken": token}), body[at:-1]))
    header = Header(reply)
    frame = op_msg(from_elements(elements), request_id=header.request_id, response_to=header.response_to)
    failures = fields.get(b"writeErrors")
    return frame, 0 if failures is None else _first_code(decode_value(body, failures))


def _first_code(failures: Sequence[Mapping[str, Any]] | None) -> int:
    return int(failures[0]["code"]) if failures else 0
