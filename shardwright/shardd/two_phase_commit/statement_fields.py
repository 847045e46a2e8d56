"""The fields of a two-phase commit in statements and in commands to participants, which mongod does not know."""

from typing import Final

from shardwright.shardd.two_phase_commit.coordinators import TransactionCoordinators
from shardwright.shardd.two_phase_commit.transaction_id import TransactionId
from shardwright.sharding.commit_protocol import COORDINATED_BY, COORDINATOR
from shardwright.sharding.operation_session import START_TRANSACTION, TXN_NUMBER
from shardwright.wire.rawbson import without
from shardwright.wire.request import Request

_FIELDS: Final = frozenset({COORDINATED_BY, COORDINATOR})


def has_commit_fields(request: Request) -> bool:
    """Whether a request has any of the fields."""
    return COORDINATOR in request.fields or COORDINATED_BY in request.fields


def without_commit_fields(request: Request, coordinators: TransactionCoordinators) -> Request:
    """A request without the fields, after the coordinators have been told of a transaction that they have to expect.

    Args:
        request: any request.
        coordinators: of this shard.

    Raises:
        CommandError: the ``lsid`` is malformed.
    """
    if request.get(COORDINATOR) is True and START_TRANSACTION in request.fields:
        lsid, number = request.raw_object(b"lsid"), request.get(TXN_NUMBER)
        if lsid is not None and isinstance(number, int):
            identity = TransactionId.read(lsid, number)
            coordinators.expect(identity.session, identity.number)
    return request.with_body(without(request.body, _FIELDS))
