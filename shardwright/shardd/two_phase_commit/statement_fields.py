"""The field ``coordinator`` of a transaction's first statement on the shard that is to coordinate its commit."""

from shardwright.shardd.two_phase_commit.coordinators import TransactionCoordinators
from shardwright.shardd.two_phase_commit.transaction_id import TransactionId
from shardwright.sharding.commit_protocol import COORDINATOR
from shardwright.sharding.operation_session import START_TRANSACTION, TXN_NUMBER
from shardwright.wire.request import Request


def expect_commit(request: Request, coordinators: TransactionCoordinators) -> None:
    """Have the coordinators expect the transaction that a statement with ``coordinator: true`` has started.

    One that mongod refuses to start may have been committed long ago: its participants would never vote on it again.

    Args:
        request: any request with the field after which the transaction goes on.
        coordinators: of this shard.

    Raises:
        CommandError: the ``lsid`` is malformed.
    """
    if request.get(COORDINATOR) is not True or START_TRANSACTION not in request.fields:
        return
    lsid, number = request.fields.get(b"lsid"), request.get(TXN_NUMBER)
    if lsid is not None and isinstance(number, int):
        coordinators.expect(TransactionId.read(request.body, lsid, number))
