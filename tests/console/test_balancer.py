"""Past moves with the pauses of writes, and the time left of a move in progress."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from shardwright.console.balancer import balancer, seconds_left, transfers, with_pauses
from shardwright.console.metrics import Labels, Sampler, Scrape
from shardwright.console.reader import Reader, Refused
from shardwright.console.settings import Settings, Target

START = datetime(2026, 1, 1, tzinfo=UTC)


def event(what: str, low: int = 0, **details: object) -> dict[str, Any]:
    return {"what": what, "ns": "d.c", "time": START, "details": {"min": {"a": low}, **details}}


def test_a_move_has_the_pause_of_its_own_critical_section() -> None:
    newest_first = [
        event("moveChunk.from", 1, **{"step 4 of 6": 900, "step 5 of 6": 30, "step 6 of 6": 4}),
        event("moveChunk.from", 0, **{"step 4 of 6": 900, "errmsg": "no"}),
        event("moveChunk.error", 0),
        event("moveChunk.commit", 1),
        event("split", 1),
        event("moveChunk.start", 1),
        event("moveChunk.commit", 1),
    ]
    assert [(each["what"], pause) for each, pause in with_pauses(newest_first)] == [
        ("moveChunk.error", None),
        ("moveChunk.commit", 34),
        ("split", None),
        ("moveChunk.commit", None),
    ]


@pytest.mark.parametrize(
    ("share", "left"), [(0.25, 30.0), (0.5, 10.0), (1.0, 0.0), (0.0, None), (0.001, None), (None, None)]
)
def test_the_time_left_follows_from_the_share(share: float | None, left: float | None) -> None:
    assert seconds_left(START, share, START + timedelta(seconds=10)) == left
    assert seconds_left(None, share, START) is None


def test_the_donor_of_a_move_is_a_shard_whatever_the_name_of_its_replica_set() -> None:
    target = Target("d", "d:1", "shardd", "set0")
    names = ("migration_active", "migration_documents_estimated", "migration_documents_cloned")
    samples: dict[tuple[str, Labels], float] = {
        (f"shardwright_shardd_donor_{name}", frozenset()): value for name, value in zip(names, (1, 4, 1), strict=True)
    }
    sampler = Sampler([target], 1, latest=Scrape(0, {"d": samples}))
    events = [{**event("moveChunk.start", 0, **{"from": "east"}), "time": datetime.now(UTC) - timedelta(seconds=10)}]
    [found] = transfers(sampler, Settings("mongodb://r", targets=[target]), events, {"set0": "east"})
    assert found["donor"] == "east"
    assert found["secondsLeft"] == pytest.approx(30, abs=2)


def test_a_silent_cluster_has_a_page_of_the_balancer_with_the_reasons() -> None:
    class Silent(Reader):
        async def command(self, *_: object, **_options: object) -> dict[str, Any]:
            raise Refused("no answer", is_away=True)

        async def find(self, *_: object, **_options: object) -> list[dict[str, Any]]:
            raise Refused("no answer", is_away=True)

        async def aggregate(self, *_: object, **_options: object) -> list[dict[str, Any]]:
            raise Refused("no answer from a shard", is_away=True)

    reader = Silent(cast("Any", None))
    found = asyncio.run(balancer(reader, Sampler((), 1), Settings("mongodb://r")))
    assert (found["mode"], found["reshardings"], found["plan"]) == ("unknown", [], None)
    assert found["refusals"] == ["no answer", "no answer from a shard"]
