"""What users may see and end of what is going on: their own operations, without a privilege. Pure.

As on mongos that is so of the operations of the router itself; for those on shards ``inprog`` and ``killop`` are needed
in any case. Shards are asked by the cluster, as which all routers log in there, so they do not know whose an operation
is. It is its user's if it is in a session of that user; outside any session it is nobody's.
"""

from collections.abc import Mapping
from typing import Any, Final

from bson import Binary, Decimal128

from shardwright.daemon.privileges import CLUSTER
from shardwright.daemon.user_names import UserName
from shardwright.router.access.needs import Need, Needs
from shardwright.wire.rawbson import ARRAY, WholeDocument, decode_document, encode_document
from shardwright.wire.request import Request
from shardwright.wire.stages import with_stages

TO_END_OTHERS: Final = Need("killop", CLUSTER)
"""What it takes to end operations of others."""

_CURRENT_OP: Final = "$currentOp"
_PIPELINE: Final = b"pipeline"


def shows_own_alone(argument: Any) -> bool:  # noqa: ANN401 - whatever a client sent
    """Whether a ``$currentOp`` shows nothing but the user's own operations on the router.

    Args:
        argument: its specification, with all its fields.
    """
    if not isinstance(argument, Mapping) or (isinstance(argument, WholeDocument) and argument.repeated):
        return False
    return argument.get("localOps") is True and not argument.get("allUsers")


def kill_op_needs(request: Request) -> Needs:
    """The row of ``killOp``: the command itself finds out whose operation of this router has a number."""
    opid = request.get(b"op")
    is_local = isinstance(opid, int | float | Decimal128) and not isinstance(opid, bool)
    return () if is_local else [TO_END_OTHERS]


def of_user(user: UserName) -> dict[str, Any]:
    """The stage that passes on a user's operations of those that run on a shard."""
    return {"$match": {"lsid.uid": Binary(user.digest)}}


def with_own_operations(request: Request, user: UserName) -> Request:
    """The request with a stage that lets pass the user's operations alone, if it does not ask shards for all.

    Args:
        request: an ``aggregate``.
        user: who sends it.
    """
    span = request.fields.get(_PIPELINE)
    if span is None or span[0] != ARRAY or _CURRENT_OP.encode() not in request.body:
        return request
    stages = request.documents(_PIPELINE)
    first = decode_document(stages[0]) if stages else {}
    argument = first.get(_CURRENT_OP)
    if not isinstance(argument, Mapping) or argument.get("allUsers") is True or argument.get("localOps") is True:
        return request
    return request.with_body(with_stages(request.body, [stages[0], encode_document(of_user(user)), *stages[1:]]))
