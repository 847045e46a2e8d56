"""The last line of `shardwright status`: how to connect, or the command to run first."""

from typing import Any

import pytest

from shardwright.deploy.cluster_text import cluster_text


def document(*running: str) -> dict[str, Any]:
    processes = [
        {"name": name, "role": role, "address": "h:1", "pid": 7 if name in running else None, "log": "l"}
        for name, role in (("config.0.configd", "configd"), ("router.0", "router"), ("router.1", "router"))
    ]
    return {
        "dir": "/c",
        "uri": "mongodb://h:1,h:2/",
        "processes": processes,
        "metrics": {},
        "migrations": [],
        "reshardings": [],
    }


@pytest.mark.parametrize(
    ("running", "end"),
    [
        (["config.0.configd", "router.1"], "connect with: mongosh mongodb://h:1,h:2/"),
        (["config.0.configd"], "no router is running: start one with `shardwright restart router.0 --dir /c`"),
        ([], "the cluster is stopped: start it with `shardwright up --dir /c`"),
    ],
)
def test_the_last_line_is_what_to_do_next(running: list[str], end: str) -> None:
    assert cluster_text(document(*running)).splitlines()[-1] == end
