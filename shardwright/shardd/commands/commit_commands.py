"""``coordinateCommitTransaction``, a router's request to coordinate the two-phase commit of a transaction."""

from collections import Counter
from typing import Any, Final

from shardwright.daemon.oplog_note import append_oplog_note
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.commands.command import ShardComponents
from shardwright.shardd.two_phase_commit.commit_state import TransactionId
from shardwright.sharding.operation_session import check_transaction_fields
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, unknown_field
from shardwright.wire.rawbson import index
from shardwright.wire.request import Request

_NAME: Final = "coordinateCommitTransaction"
_PARTICIPANT: Final = f"{_NAME}.participants"
_WRITE_CONCERN_ERROR: Final = "writeConcernError"
_NO_MORE_THAN_A_MAJORITY: Final = (0, 1, "majority")


async def coordinate_commit_transaction(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Commit a transaction on all participants or none; without participants, return the outcome of an earlier commit.

    Raises:
        CommandError: NoSuchTransaction, it was aborted; 51162, a shard is named twice; or the request is malformed.
    """
    participants = [_shard_of(each) for each in Arguments.of(request).raw_documents(b"participants")]
    identity = _transaction_of(request)
    for participant, count in Counter(participants).items():
        if count > 1:
            raise CommandError(51162, f"Participant list contains duplicate shard {participant}")
    reply = await shard.transaction_coordinators.commit(identity, participants)
    # The decision is on a majority in any case.
    error = reply.get(_WRITE_CONCERN_ERROR) or await _wait_write_concern(shard.context.mongod, request)
    return {_WRITE_CONCERN_ERROR: error} if error else {}


def _shard_of(participant: bytes) -> str:
    """Return the shard id of a participant, or raise 40414, 40415 or TypeMismatch."""
    arguments = Arguments(participant, _PARTICIPANT)
    for name in index(participant):
        if name != b"shardId":
            raise unknown_field(f"{_PARTICIPANT}.{name.decode(errors='replace')}")
    return arguments.string(b"shardId")


def _transaction_of(request: Request) -> TransactionId:
    """Return the transaction of a request, or raise CommandFailed if it has no session."""
    check_transaction_fields(request)
    lsid = request.fields.get(b"lsid")
    if lsid is None or b"txnNumber" not in request.fields:
        raise CommandError(ErrorCode.CommandFailed, f"{_NAME} must be run within a transaction")
    return TransactionId.read(request.body, lsid, int(request.get(b"txnNumber")))


async def _wait_write_concern(mongod: LocalMongod, request: Request) -> dict[str, Any] | None:
    """Wait for a write concern that exceeds a majority; return its error, if any. mongod may refuse unknown tags."""
    concern = request.get(b"writeConcern") or {}
    if concern.get("w", 1) in _NO_MORE_THAN_A_MAJORITY:
        return None
    note = {"appendOplogNote": 1, "data": {"msg": _NAME}, "writeConcern": concern}
    error: dict[str, Any] | None = (await append_oplog_note(mongod.command, note)).get(_WRITE_CONCERN_ERROR)
    return error
