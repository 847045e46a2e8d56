"""Every scripted session of `mongosh_compat` runs to its end; the scripts contain their expectations."""

import pytest

from shardwright.mongosh_compat.runner import PRELUDE, SCRIPTS, run_code, run_script
from tests.local_cluster import RunningCluster

SESSIONS = sorted(path.name for path in SCRIPTS.glob("*.js") if path != PRELUDE)


@pytest.mark.parametrize("name", SESSIONS)
def test_session(cluster: RunningCluster, name: str) -> None:
    # Some helpers change one router, and others read what was changed.
    uri = cluster.client_uri("router.0")
    run_script(uri, SCRIPTS / name).check()


def test_status_names_shards_and_balancer(cluster: RunningCluster) -> None:
    output = run_script(cluster.client_uri(), SCRIPTS / "status.js").check()
    for shard in cluster.shards:
        assert f"_id: '{shard}'" in output
    assert "balancer" in output


def test_direct_connection_to_a_shardd(cluster: RunningCluster) -> None:
    uri = cluster.client_uri("shard0.0.shardd", directConnection="true")
    result = run_code(uri, "db.hello().setName")
    assert result.check().strip() == "shard0"
