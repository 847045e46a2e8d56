"""The checkers of scans, snapshots, placement, the catalog and logs."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.checkers.catalog import CatalogView, ShardedCollection, check_catalog
from tests.chaos.checkers.definitions import check_alike
from tests.chaos.checkers.logs import check_daemon_log, check_mongod_log
from tests.chaos.checkers.placement import check_found_by_key, check_placement
from tests.chaos.checkers.scans import check_scan
from tests.chaos.checkers.snapshots import check_advance, check_chain

IDENTITIES = st.sets(st.text("abc", min_size=1, max_size=3))


@given(IDENTITIES, IDENTITIES, st.data())
def test_scan(standing: set[str], others: set[str], data: st.DataObject) -> None:
    passing = others - standing
    seen = data.draw(st.sets(st.sampled_from(sorted(passing)))) if passing else set()
    found = data.draw(st.permutations(sorted(standing | seen)))
    assert check_scan(found, standing, passing) == []
    for index, identity in enumerate(found):
        assert "twice" in check_scan([*found, identity], standing, passing)[0]
        without = check_scan(found[:index] + found[index + 1 :], standing, passing)
        assert bool(without) == (identity in standing)
    assert "never existed" in check_scan([*found, "z"], standing, passing)[0]


@given(st.integers(1, 10), st.integers(0, 100), st.data())
def test_chain(length: int, value: int, data: st.DataObject) -> None:
    raised = data.draw(st.integers(0, length))
    links = [(position, value + (position < raised)) for position in range(length)]
    assert check_chain(data.draw(st.permutations(links)), length) == []
    assert check_chain(links[1:], length)
    assert check_chain([*links, links[0]], length)
    ahead = [*links[:-1], (length - 1, value + 1)]
    assert bool(check_chain(ahead, length)) == (raised < length - 1)
    behind = [(position, value - (position > 0)) for position in range(length)]
    assert check_chain([(0, value + 1), *behind[1:]], length) or length == 1


def test_a_session_does_not_go_back() -> None:
    assert check_advance([(0, 1), (1, 1)], [(0, 2), (1, 1)]) == []
    assert check_advance([(0, 2), (1, 1)], [(0, 1), (1, 1)])


def test_placement() -> None:
    owners = {"a": "shard0", "b": "shard1"}
    assert check_placement({"shard0": {"a"}, "shard1": {"b"}}, owners) == []
    assert check_placement({"shard0": {"a", "b"}, "shard1": {"b"}}, owners)
    assert check_placement({"shard0": {"a", "b"}, "shard1": set()}, owners)
    assert check_placement({"shard0": {"a"}, "shard1": set()}, owners)
    assert check_placement({"shard0": {"a"}, "shard1": {"b", "c"}}, owners)


def test_documents_are_found_by_their_keys() -> None:
    documents = {"a": {"_id": "a", "k": 1}}
    assert check_found_by_key(documents, {"a": {"_id": "a", "k": 1}}) == []
    assert check_found_by_key(documents, {"a": None})
    assert check_found_by_key(documents, {})


GOOD = CatalogView(
    sharded={"db.s": ShardedCollection("u1", ((0, 5, "shard0"), (5, 9, "shard1")), 0, 9)},
    primaries={"db": "shard0"},
    local={"shard0": {"db.s": "u1", "db.plain": "u2"}, "shard1": {"db.s": "u1"}},
)


def with_chunks(*chunks: tuple[int, int, str]) -> CatalogView:
    return replace(GOOD, sharded={"db.s": replace(GOOD.sharded["db.s"], chunks=chunks)})


def test_catalog() -> None:
    assert check_catalog(GOOD) == []
    wrong = {
        "with the UUID": replace(GOOD, local={**GOOD.local, "shard1": {"db.s": "u9"}}),
        "stray": replace(GOOD, local={**GOOD.local, "shard1": {"db.s": "u1", "db.plain": "u2"}}),
        "which does not exist": replace(GOOD, local={**GOOD.local, "shard1": {"db.s": "u1", "gone.c": "u3"}}),
        "does not have the collection": replace(GOOD, local={**GOOD.local, "shard1": {}}),
        "a gap": with_chunks((0, 4, "shard0"), (5, 9, "shard1")),
        "an overlap": with_chunks((0, 6, "shard0"), (5, 9, "shard1")),
        "go from": with_chunks((0, 5, "shard0"), (5, 8, "shard1")),
        "no chunks": with_chunks(),
    }
    for what, view in wrong.items():
        assert any(what in anomaly for anomaly in check_catalog(view)), what


def test_definitions() -> None:
    one = {"indexes": ["_id_", "a_1"], "options": {}}
    assert check_alike({"shard0": one, "shard1": dict(one)}) == []
    assert check_alike({}) == []
    assert "indexes" in check_alike({"shard0": one, "shard1": {**one, "indexes": ["_id_"]}})[0]
    assert "options" in check_alike({"shard0": one, "shard1": {**one, "options": {"capped": True}}})[0]


def test_logs() -> None:
    ordinary = '{"level":"warning","msg":"Lost the mongod","error":"closed the connection"}'
    fault = '{"level":"error","msg":"Internal error in a command","traceback":"Traceback ..."}'
    assert check_daemon_log("router.0", [ordinary]) == []
    assert check_daemon_log("router.0", [ordinary, fault]) == [f"router.0 logged {fault}"]
    assert check_daemon_log("router.0", ["Fatal Python error: Aborted"])
    assert check_mongod_log("shard0.0.mongod", ['{"s":"I","msg":"Transition to SECONDARY"}']) == []
    assert check_mongod_log("shard0.0.mongod", ['{"s":"F","msg":"Fatal assertion"}'])
