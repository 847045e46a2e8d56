"""``coordinateCommitTransaction``, with which a router has this shard commit a transaction of several shards."""

from typing import Any, Final

from shardwright.shardd.commands.command_registry import command
from shardwright.shardd.commands.components import ShardComponents
from shardwright.shardd.two_phase_commit.transaction_id import TransactionId
from shardwright.sharding.operation_session import check_transaction_fields
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request

_NAME: Final = "coordinateCommitTransaction"
_KNOWN: Final = frozenset({_NAME.encode(), b"participants", b"autocommit", b"coordinator", b"txnRetryCounter"})


@command(_NAME, admin_only=True)
async def coordinate_commit_transaction(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Commit a transaction on all participants or on none; without participants, find out what became of it.

    Raises:
        CommandError: NoSuchTransaction, it was aborted; 51162, a shard is named twice; the request is malformed.
        BackendError: mongod does not answer.
    """
    arguments = Arguments.of(request)
    arguments.refuse_unknown(_KNOWN)
    participants = [
        Arguments(each, f"{_NAME}.participants").string(b"shardId") for each in arguments.raw_documents(b"participants")
    ]
    identity = _transaction_of(request)
    seen: set[str] = set()
    for participant in participants:
        if participant in seen:
            raise CommandError(51162, f"participant list contained duplicate shard {participant}")
        seen.add(participant)
    return await shard.transaction_coordinators.commit(identity, participants)


def _transaction_of(request: Request) -> TransactionId:
    """The transaction of a request.

    Raises:
        CommandError: CommandFailed, it has no session; OperationNotSupportedInTransaction, it would start the
            transaction; as `check_transaction_fields`.
    """
    check_transaction_fields(request)
    lsid = request.raw_object(b"lsid")
    if lsid is None or b"txnNumber" not in request.fields:
        raise CommandError(ErrorCode.CommandFailed, f"{_NAME} must be run within a transaction")
    if b"startTransaction" in request.fields:
        message = f"Cannot run '{_NAME}' as the first statement of a transaction"
        raise CommandError(ErrorCode.OperationNotSupportedInTransaction, message)
    return TransactionId.read(lsid, int(request.get(b"txnNumber")))
