"""A running cluster goes from keys to certificates, while a client writes to it; and how each mode starts."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest
from pymongo.errors import OperationFailure

from tests.local_cluster import RunningCluster, running_cluster, shardwright

DAEMONS: Final = ("router.0", "shard0.0.shardd", "config.0.configd", "shard0.0.mongod")


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster with keys and TLS."""
    size = ("--shards", "1", "--members", "1", "--config-members", "1", "--workers", "2")
    with running_cluster(tmp_path_factory.mktemp("keyed"), "--auth", "--tls", *size) as cluster:
        yield cluster


def modes_of(cluster: RunningCluster) -> set[str]:
    found = set()
    for name in DAEMONS:
        with cluster.direct(name) as client:
            found.add(client.admin.command("getParameter", 1, clusterAuthMode=1)["clusterAuthMode"])
    return found


def code_with_key(cluster: RunningCluster, name: str) -> int | None:
    """The code with which a process refuses the key."""
    key = cluster.credentials(is_router=False).options
    with cluster.direct(name, **key) as client, pytest.raises(OperationFailure) as caught:
        client.admin.command("getParameter", 1, clusterAuthMode=1)
    return caught.value.code


def changed_to(cluster: RunningCluster, mode: str) -> RunningCluster:
    """Return the cluster after the command, with a new description."""
    completed = shardwright("cluster-auth-mode", mode, "--dir", str(cluster.directory))
    assert completed.returncode == 0, completed.stderr
    return replace(cluster, document=cluster.local.describe())


def test_the_key_of_a_cluster_with_tls_is_rotated(keyed: RunningCluster) -> None:
    before = (keyed.directory / "auth" / "key").read_text()
    completed = shardwright("rotate-key", "--dir", str(keyed.directory))
    assert completed.returncode == 0, completed.stderr
    assert (keyed.directory / "auth" / "key").read_text() != before
    with keyed.client() as client:
        client.shop.rotated.insert_one({})


def test_a_cluster_goes_from_keys_to_certificates_while_it_is_written_to(keyed: RunningCluster) -> None:
    written, has_ended, failures = [0], threading.Event(), list[Exception]()

    def write() -> None:
        with keyed.client() as client:
            while not has_ended.is_set():
                try:
                    client.shop.goods.insert_one({"_id": written[0]})
                except Exception as error:
                    failures.append(error)
                    return
                written[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with keyed.direct("router.0") as client, pytest.raises(OperationFailure, match="from 'keyFile' to 'x509'"):
            client.admin.command("setParameter", 1, clusterAuthMode="x509")
        both = changed_to(keyed, "sendX509")
        assert modes_of(both) == {"sendX509"}
        certificates = changed_to(both, "x509")
        assert modes_of(certificates) == {"x509"}
        assert [code_with_key(keyed, name) for name in DAEMONS[:3]] == [18, 18, 18]
    finally:
        has_ended.set()
        writer.join()
    assert failures == []
    with keyed.client() as client:
        assert client.shop.goods.count_documents({}) == written[0] > 0

    # Processes that start from now on get no key, and find the others.
    for name in ("shard0.0.mongod", "shard0.0.shardd", "router.0"):
        certificates.restart(name)
    with certificates.client() as client:
        client.shop.goods.insert_one({"_id": "last"})
    assert modes_of(certificates) == {"x509"}
    back = shardwright("cluster-auth-mode", "keyFile", "--dir", str(keyed.directory))
    assert (back.returncode, "there is no way back" in back.stderr) == (1, True)
    rotation = shardwright("rotate-key", "--dir", str(keyed.directory))
    assert (rotation.returncode, "recognise each other by certificates" in rotation.stderr) == (1, True)
