"""Metrics of the mongod behind a sidecar."""

from datetime import UTC, datetime
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shardwright.daemon.sidecar.member_metrics import lag_seconds
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import Member

PREFIX = "shardwright_shardd_"


def member_at(second: int, state: str, *, is_self: bool = False) -> dict[str, object]:
    return {"stateStr": state, "optimeDate": datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC), "self": is_self}


def test_a_secondary_is_behind_its_primary() -> None:
    assert lag_seconds({"members": [member_at(9, "PRIMARY"), member_at(5, "SECONDARY", is_self=True)]}) == 4
    assert lag_seconds({"members": [member_at(4, "PRIMARY"), member_at(5, "SECONDARY", is_self=True)]}) == 0
    assert lag_seconds({"members": [member_at(9, "PRIMARY", is_self=True), member_at(5, "SECONDARY")]}) == 0


@pytest.mark.parametrize("members", [[], [member_at(5, "SECONDARY", is_self=True)], [member_at(5, "PRIMARY")]])
def test_without_a_primary_the_lag_is_not_known(members: list[dict[str, object]]) -> None:
    assert lag_seconds({"members": members}) is None


def test_a_daemon_serves_what_it_has_read(member: Member) -> None:
    with member.client() as client:
        client["metrics"].stock.insert_one({"x": 1})

    def samples() -> dict[str, float]:
        with urlopen(f"http://127.0.0.1:{member.metrics_port}/metrics") as reply:
            families = text_string_to_metric_families(reply.read().decode())
        return {
            sample.name + "".join(sample.labels.values()): sample.value
            for family in families
            for sample in family.samples
        }

    def is_read() -> bool:
        return samples()[f"{PREFIX}member_stateprimary"] == 1

    eventually(is_read)
    found = samples()
    assert sum(value for name, value in found.items() if name.startswith(f"{PREFIX}member_state")) == 1
    assert found[f"{PREFIX}replication_lag_seconds"] == 0
    assert found[f"{PREFIX}oplog_window_seconds"] >= 0
    assert found[f"{PREFIX}mongod_documents_totalinserted"] > 0
