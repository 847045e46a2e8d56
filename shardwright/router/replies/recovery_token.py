"""The recovery token in the replies to statements of a transaction."""

from collections.abc import Mapping

from shardwright.router.replies.own_reply import Reply
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import Header
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import decode_document, decode_value, encode_elements, from_elements, index

_CLUSTER_TIME = b"$clusterTime"


def with_recovery_token(reply: Reply, token: Mapping[str, str]) -> tuple[Reply, bool]:
    """A successful reply with a recovery token, and whether it reports that a statement of a batch has failed.

    Args:
        reply: the reply.
        token: from the transaction.

    Raises:
        CommandError: the reply is a shard's error, which was to be passed on.
    """
    if reply is None:
        return None, False
    if isinstance(reply, dict):
        return {**reply, "recoveryToken": token}, "writeErrors" in reply
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
    return frame, b"writeErrors" in fields
