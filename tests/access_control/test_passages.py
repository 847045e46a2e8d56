"""Passages in a closed cluster, whose shard daemons have audit logs: users are served by them, and refused at once."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.access_control.users import PASSWORD, user_of
from tests.integration.health import sample
from tests.local_cluster import RunningCluster
from tests.server_parameters import server_parameter

READS_AND_WRITES = {"role": "readWrite", "db": "shop"}
ROUNDS = 25


def taken(closed: RunningCluster) -> tuple[float, float]:
    """Return the number of requests served by passages of the first router and of all shard daemons."""
    router = sample(closed.metrics["router.0"], 'passages_total{outcome="taken"}')
    daemons = [address for name, address in closed.metrics.items() if name.endswith(".shardd")]
    assert daemons
    return router, sum(sample(address, 'passages_total{outcome="taken"}', daemon="shardd") for address in daemons)


@contextmanager
def passages(closed: RunningCluster) -> Iterator[None]:
    """All daemons have passages during the block; today's cluster may have been started without them."""
    with ExitStack() as stack:
        for name in closed.metrics:
            if name.endswith(".shardd") or name.startswith("router"):
                client = stack.enter_context(closed.direct(name))
                stack.enter_context(server_parameter(client, "enablePassages", True))
        yield


def test_users_take_passages_until_a_role_is_revoked(closed: RunningCluster) -> None:
    with passages(closed), user_of(closed, "chief") as root:
        root.admin.command("createUser", "passing", pwd=PASSWORD, roles=[READS_AND_WRITES])
        try:
            with user_of(closed, "passing") as client:
                goods = client.shop.goods
                before = taken(closed)
                for number in range(1_000, 1_000 + ROUNDS):
                    goods.insert_one({"a": number})
                    assert goods.update_one({"a": number}, {"$inc": {"n": 1}}).modified_count == 1
                    found = goods.find_one({"a": number})
                    assert found is not None
                    assert found["n"] == 1
                    assert goods.delete_one({"a": number}).deleted_count == 1
                after = taken(closed)
                assert after[0] - before[0] > ROUNDS
                assert after[1] - before[1] > ROUNDS
                root.admin.command("revokeRolesFromUser", "passing", roles=[READS_AND_WRITES])
                with pytest.raises(OperationFailure) as refused:
                    goods.find_one({"a": 1})
                assert refused.value.code == ErrorCode.Unauthorized
                with pytest.raises(OperationFailure) as refused:
                    goods.update_one({"a": 1}, {"$inc": {"n": 1}})
                assert refused.value.code == ErrorCode.Unauthorized
        finally:
            root.admin.command("dropUser", "passing")
