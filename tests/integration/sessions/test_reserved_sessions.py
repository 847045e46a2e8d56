"""Clients cannot use the sessions that daemons use on their mongods."""

from uuid import UUID

import pytest
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.sidecar.term_fence import FENCE_SESSION_ID
from shardwright.daemon.users import RESERVED_SESSION_IDS
from shardwright.wire.error_codes import ErrorCode
from tests.integration.raw_client import raw_client
from tests.integration.sharded import Documents
from tests.local_cluster import RunningCluster


@pytest.mark.parametrize("daemon", ["router.0", "shard0.0.shardd", "config.0.configd"])
@pytest.mark.parametrize("session_id", [FENCE_SESSION_ID, RESERVED_SESSION_IDS[0]], ids=["fence", "transactions"])
def test_clients_cannot_write_in_sessions_of_daemons(
    cluster: RunningCluster, ranged: Documents, daemon: str, session_id: UUID
) -> None:
    write = {
        "insert": ranged.name,
        "documents": [{"key": 1}],
        "lsid": {"id": Binary.from_uuid(session_id)},
        "txnNumber": Int64(1 << 62),
    }
    with raw_client(cluster.address(daemon)) as client:
        reply = client.command(write, db=ranged.database.name)
        assert (reply["ok"], reply.get("code")) == (0, ErrorCode.Unauthorized)
        assert client.command({"ping": 1})["ok"]
    assert ranged.count_documents({}) == 0
