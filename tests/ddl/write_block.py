"""Blocking the writes of users, as a change whose coordinator is stopped and whose processes are killed."""

from typing import ClassVar, Final

from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.ddl.changes import Change
from tests.ddl.places import END, config_coordinator_at
from tests.integration.sharded import LOWER, UPPER, Document
from tests.integration.waiting import eventually
from tests.local_cluster import Client
from tests.migration.fault_cluster import CONFIG, FaultCluster

BLOCKED: Final = {"_id": "", "blockNewUserShardedDDL": True, "blockUserWrites": True}
REPLICATION_SECONDS_MAX: Final = 60.0


class WriteBlock(Change):
    """Turning it on or off.

    Args:
        db: a database in which ``things`` is sharded, with chunks on both shards.
        block: whether it is turned on.
    """

    name: ClassVar[str] = "setUserWriteBlockMode"
    places = config_coordinator_at("setUserWriteBlockMode", "prepare", "complete", END)

    def __init__(self, db: str, *, block: bool) -> None:
        super().__init__(db)
        self.block = block

    def request(self) -> tuple[str, Document]:
        return "admin", {"setUserWriteBlockMode": 1, "global": self.block}

    def check(self, router: Client) -> None:
        """Check that a router can write to both shards, or to none of them."""
        for key in (0, 899):
            code = _code(router, self.db, {"update": "things", "updates": [_update(key)]})
            assert code == (ErrorCode.UserWritesBlocked if self.block else 0)
        code = _code(router, self.db, {"collMod": "things", "validationLevel": "strict"})
        assert code == (ErrorCode.UserWritesBlocked if self.block else 0)

    def check_everywhere(self, cluster: FaultCluster) -> None:
        """Check every router, and what every member of the cluster has persisted.

        Raises:
            AssertionError: one of them does otherwise, or something of the coordinator is left.
        """
        for index in range(len(cluster.router_addresses)):
            self.check(cluster.router(index))
        expected = [BLOCKED] if self.block else []
        for name in (each for shard in (CONFIG, LOWER, UPPER) for each in cluster.mongods_of(shard)):
            documents = cluster.client(name).config.user_writes_critical_sections
            eventually(
                lambda: list(documents.find()) == expected,  # noqa: B023 - called at once
                within=REPLICATION_SECONDS_MAX,
                what=f"{name} has {expected}",
            )
        config = cluster.client(f"{CONFIG}.{cluster.primary_index(CONFIG)}.mongod").config
        assert config.sharding_configsvr_coordinators.count_documents({}) == 0


def _update(key: int) -> Document:
    return {"q": {"key": key}, "u": {"$inc": {"times": 1}}}


def _code(router: Client, db: str, command: Document) -> int:
    try:
        reply = router[db].command(command)
    except OperationFailure as failure:
        return failure.code or -1
    return int(reply["writeErrors"][0]["code"]) if "writeErrors" in reply else 0
