"""Delay until a router sees changes to users that were made through another router."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.access_control.users import PASSWORD, user_of
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster
from tests.server_parameters import server_parameter

READS = {"role": "read", "db": "shop"}
PARAMETER = "userCacheInvalidationIntervalSecs"
DAY = 86_400


@contextmanager
def clerk(closed: RunningCluster, seconds: int) -> Iterator[tuple[Client, Client]]:
    """Yield a new user who may read, at the second router, which has cached it; and root at the first router.

    Args:
        closed: the cluster.
        seconds: maximum age of the second router's cache.
    """
    with (
        user_of(closed, "chief") as root,
        user_of(closed, "chief", "router.1") as other,
        server_parameter(other, PARAMETER, seconds),
    ):
        root.admin.command("createUser", "passing", pwd=PASSWORD, roles=[READS])
        try:
            with user_of(closed, "passing", "router.1") as client:
                client.shop.goods.find_one()
                yield client, root
        finally:
            if root.admin.command("usersInfo", "passing")["users"]:
                root.admin.command("dropUser", "passing")


def is_refused(client: Client) -> bool:
    try:
        client.shop.goods.find_one()
    except OperationFailure as failure:
        return failure.code == ErrorCode.Unauthorized
    return False


def test_a_change_counts_at_another_router_within_the_interval(closed: RunningCluster) -> None:
    with clerk(closed, 1) as (client, root):
        root.admin.command("revokeRolesFromUser", "passing", roles=[READS])
        eventually(lambda: is_refused(client), what="the role is gone")
        root.admin.command("grantRolesToUser", "passing", roles=[READS])
        eventually(lambda: not is_refused(client), what="the role is back")
        root.admin.command("dropUser", "passing")
        eventually(lambda: is_refused(client), what="the user is gone")
        with pytest.raises(OperationFailure, match="command find requires authentication"):
            client.shop.goods.find_one()


def test_until_then_the_router_uses_what_it_has_read(closed: RunningCluster) -> None:
    with clerk(closed, DAY) as (client, root):
        root.admin.command("revokeRolesFromUser", "passing", roles=[READS])
        assert not is_refused(client)
        with user_of(closed, "chief", "router.1") as other:
            other.admin.command("invalidateUserCache")
        assert is_refused(client)
