"""The field ``coordinator`` of a transaction's first statement on the shard that is to coordinate its commit."""

from shardwright.shardd.transactions.request_fields import transaction_of
from shardwright.shardd.two_phase_commit.coordinators import TransactionCoordinators
from shardwright.shardd.two_phase_commit.transaction_id import TransactionId
from shardwright.sharding.commit_protocol import COORDINATOR
from shardwright.sharding.operation_session import START_TRANSACTION
from shardwright.wire.request import Request


def expect_commit(request: Request, coordinators: TransactionCoordinators) -> None:
    """Have the coordinators expect the transaction that a statement with ``coordinator: true`` has started.

    One that mongod refuses to start may have been committed long ago: its participants would never vote on it again.

    Args:
        request: any request with the field after which the transaction goes on.
        coordinators: of this shard.
    """
    if request.get(COORDINATOR) is not True or START_TRANSACTION not in request.fields:
        return
    identity = transaction_of(request)
    if identity is not None:
        coordinators.expect(TransactionId(*identity))
