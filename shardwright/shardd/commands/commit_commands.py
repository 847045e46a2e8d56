"""``coordinateCommitTransaction``, with which a router has this shard commit a transaction of several shards."""

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
    """Commit a transaction on all participants or on none; without participants, find out what became of it.

    Raises:
        CommandError: NoSuchTransaction, it was aborted; 51162, a shard is named twice; the request is malformed.
        BackendError: mongod does not answer.
    """
    participants = [_shard_of(each) for each in Arguments.of(request).raw_documents(b"participants")]
    identity = _transaction_of(request)
    for participant, count in Counter(participants).items():
        if count > 1:
            raise CommandError(51162, f"Participant list contains duplicate shard {participant}")
    reply = await shard.transaction_coordinators.commit(identity, participants)
    # What was decided is on a majority in any case.
    error = reply.get(_WRITE_CONCERN_ERROR) or await _wait_write_concern(shard.context.mongod, request)
    return {_WRITE_CONCERN_ERROR: error} if error else {}


def _shard_of(participant: bytes) -> str:
    """The shard id of a participant.

    Raises:
        CommandError: 40414, 40415, TypeMismatch.
    """
    arguments = Arguments(participant, _PARTICIPANT)
    for name in index(participant):
        if name != b"shardId":
            raise unknown_field(f"{_PARTICIPANT}.{name.decode(errors='replace')}")
    return arguments.string(b"shardId")


def _transaction_of(request: Request) -> TransactionId:
    """The transaction of a request.

    Raises:
        CommandError: CommandFailed, it has no session; as `check_transaction_fields`.
    """
    check_transaction_fields(request)
    lsid = request.fields.get(b"lsid")
    if lsid is None or b"txnNumber" not in request.fields:
        raise CommandError(ErrorCode.CommandFailed, f"{_NAME} must be run within a transaction")
    return TransactionId.read(request.body, lsid, int(request.get(b"txnNumber")))


async def _wait_write_concern(mongod: LocalMongod, request: Request) -> dict[str, Any] | None:
    """Wait for the client's write concern if it asks for more than a majority; returns what mongod says if it fails.

    Raises:
        CommandError: mongod refuses, for instance a write concern with unknown tags.
        BackendError: mongod does not answer.
    """
    concern = request.get(b"writeConcern") or {}
    if concern.get("w", 1) in _NO_MORE_THAN_A_MAJORITY:
        return None
    note = {"appendOplogNote": 1, "data": {"msg": _NAME}, "writeConcern": concern}
    error: dict[str, Any] | None = (await append_oplog_note(mongod.command, note)).get(_WRITE_CONCERN_ERROR)
    return error
