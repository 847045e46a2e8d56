"""Feature versions: the daemons that may run in a cluster, and the formats that they write."""

from datetime import UTC, datetime
from typing import Any

import pytest

from shardwright.sharding import feature_version
from shardwright.sharding.feature_version import (
    EXTENSIONS,
    NEWEST,
    OLDEST,
    knows,
    refusal,
    router_fields,
    router_knows,
    version_of,
)
from shardwright.wire.errors import CommandError

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def test_a_cluster_without_the_document_has_the_first_version() -> None:
    assert version_of(None) == 1
    assert version_of({"_id": "featureVersion", "version": 2}) == 2
    with pytest.raises(CommandError, match="version"):
        version_of({"_id": "featureVersion", "version": "2"})


def test_a_later_release_sees_that_no_upgrade_was_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_version, "OLDEST", 2)
    refused = feature_version.refusal(version_of(None))
    assert refused is not None
    assert "install the release before this one" in refused


def test_two_successive_releases_fit() -> None:
    assert NEWEST - OLDEST <= 1, "a release reads what the release before it writes, not more"
    assert [refusal(version) for version in range(OLDEST, NEWEST + 1)] == [None] * (NEWEST - OLDEST + 1)


def test_a_refusal_says_what_to_install() -> None:
    newer, older = refusal(NEWEST + 1), refusal(OLDEST - 1)
    assert newer is not None
    assert older is not None
    assert f"is {NEWEST + 1}, and this daemon knows {OLDEST} to {NEWEST}" in newer
    assert "install the newer release" in newer
    assert "install the release before this one, and run `shardwright finish-upgrade`" in older


@pytest.mark.parametrize(
    ("extensions", "version", "expected"),
    [
        (["involvedNamespaces"], 1, True),
        (["involvedNamespaces"], 2, False),
        (EXTENSIONS, NEWEST, True),
        (EXTENSIONS, NEWEST + 1, False),
        (["featureVersion2", "featureVersion3"], 1, False),
        (["featureVersion12"], 1, False),
    ],
)
def test_versions_that_a_daemon_lists(extensions: list[str], version: int, *, expected: bool) -> None:
    assert knows(extensions, version) is expected


def test_a_router_that_went_back_does_not_know_what_its_entry_still_says() -> None:
    entry: dict[str, Any] = {"_id": "r:1", "created": NOW, **router_fields(NOW)}
    assert router_knows(entry, NEWEST)
    assert not router_knows(entry, NEWEST + 1)
    restarted = {**entry, "created": NOW.replace(hour=1)}
    assert not router_knows(restarted, NEWEST)
    assert router_knows(restarted, 1)
