"""Single decisions of the policy, with their reasons."""

import pytest

from shardwright.sharding.balancing.cluster_state import ClusterState, ForceJumbo, Policy, Rule, ShardState, ZoneMap
from shardwright.sharding.balancing.policy import choose_moves, first_violation, ideal_count
from tests.sharding.balancing.simulation import PATTERN, SimulatedChunk, World, drive


def shard(name: str, *zones: str, draining: bool = False, available: bool = True) -> ShardState:
    return ShardState(name, frozenset(zones), draining, available)


def world(
    shards: list[ShardState],
    chunks: list[tuple[int, str]],
    zones: list[tuple[int, int, str]] | None = None,
    jumbo: frozenset[int] = frozenset(),
    policy: Policy = Policy.DATA_SIZE,
    document_bytes: int = 10,
) -> World:
    """Chunks given by the key after their last and their shard; each key's document is as large as a chunk may be."""
    made, low = [], 0
    for high, name in chunks:
        made.append(SimulatedChunk(low, high, name, low in jumbo))
        low = high
    return World(shards, made, [document_bytes] * low, zones or [], policy)


def moves(of: World) -> list[tuple[str, str, str, int]]:
    """Donor, recipient, rule and first key of each move of the next round."""
    decided = of.decide().moves
    return [(each.donor, each.recipient, each.rule.value, _first_key(of, each.chunk.range.min)) for each in decided]


def _first_key(of: World, bound: bytes) -> int:
    return next(chunk.low for chunk in of.chunks if of.bound(chunk.low) == bound)


def test_data_is_moved_from_the_most_to_the_least_loaded_from_three_chunks_on() -> None:
    assert moves(world([shard("a"), shard("b")], [(3, "a")])) == [("a", "b", "chunksImbalance", 0)]
    assert moves(world([shard("a"), shard("b")], [(3, "a")], document_bytes=9)) == []


def test_a_move_to_even_out_data_is_a_part_of_a_chunk_with_its_numbers() -> None:
    (move,) = world([shard("a"), shard("b")], [(5, "a")]).decide().moves
    document = move.to_document()
    assert document.pop("min").raw == world([shard("a")], [(5, "a")]).bound(0)
    assert document == {
        "action": "moveRange",
        "ns": "db.c",
        "from": "a",
        "to": "b",
        "rule": "chunksImbalance",
        "donorBytes": 50,
        "recipientBytes": 0,
        "thresholdBytes": 30,
    }


def test_several_pairs_of_shards_move_at_once() -> None:
    shards = [shard(name) for name in "abcd"]
    assert moves(world(shards, [(8, "a"), (15, "b")])) == [
        ("a", "c", "chunksImbalance", 0),
        ("b", "d", "chunksImbalance", 8),
    ]


def test_no_shard_is_taken_past_the_mean_by_the_way() -> None:
    """Sizes 10, 9, 5 and 0: MongoDB would continue to fill the third shard, past the mean of 6."""
    of = world([shard(name) for name in "abcd"], [(10, "a"), (19, "b"), (25, "c")])
    decisions = of.decide()
    assert [(each.donor, each.recipient) for each in decisions.moves] == [("a", "d")]
    assert [(each.shard, each.reason) for each in decisions.skipped] == [
        ("b", "the move to c would take a shard past the mean of 62 bytes")
    ]


def test_draining_shards_are_emptied_first_whatever_their_size() -> None:
    of = world([shard("a"), shard("b", draining=True), shard("c")], [(1, "b"), (10, "a")])
    decisions = of.decide().moves
    assert [(each.donor, each.recipient, each.rule, each.force_jumbo) for each in decisions] == [
        ("b", "c", Rule.DRAINING, ForceJumbo.BALANCER)
    ]
    assert decisions[0].is_whole


def test_nothing_is_moved_to_a_draining_shard_or_one_that_does_not_answer() -> None:
    assert moves(world([shard("a"), shard("b", draining=True)], [(10, "a")])) == []
    assert moves(world([shard("a"), shard("b", available=False)], [(10, "a")])) == []
    assert moves(world([shard("a"), shard("b", available=False), shard("c")], [(9, "b")])) == []


def test_chunks_that_are_jumbo_stay_and_are_reported() -> None:
    of = world([shard("a", draining=True), shard("b")], [(1, "a"), (2, "a")], jumbo=frozenset({0}))
    assert moves(of) == [("a", "b", "draining", 1)]
    of = world([shard("a", draining=True), shard("b")], [(1, "a"), (2, "b")], jumbo=frozenset({0}))
    decisions = of.decide()
    assert decisions.moves == []
    assert [each.to_document() for each in decisions.skipped] == [
        {
            "ns": "db.c",
            "rule": "draining",
            "shard": "a",
            "reason": "the remaining chunks are jumbo, or their last move has failed and is not due to be repeated yet",
        }
    ]


def test_draining_passes_over_chunks_of_zones_without_a_recipient() -> None:
    shards = [shard("a", "z", draining=True), shard("b")]
    of = world(shards, [(2, "a"), (4, "a")], [(0, 2, "z")])
    decisions = of.decide()
    assert moves(of) == [("a", "b", "draining", 2)]
    of = world(shards, [(2, "a"), (4, "b")], [(0, 2, "z")])
    decisions = of.decide()
    assert decisions.moves == []
    assert [(each.zone, each.reason) for each in decisions.skipped] == [
        ("z", "no shard that may receive chunks of this zone is free in this round")
    ]


def test_chunks_are_split_at_the_bounds_of_zones() -> None:
    of = world([shard("a", "z"), shard("b")], [(10, "a")], [(2, 5, "z"), (5, 7, "y")])
    (split,) = of.decide().splits
    assert split.points == (of.bound(2), of.bound(5), of.bound(7))
    assert [chunk.low for chunk in of.chunks] == [0, 2, 5, 7]
    assert of.decide().splits == []


def test_chunks_are_moved_to_their_zone() -> None:
    of = world([shard("a"), shard("b", "z"), shard("c", "z")], [(1, "b"), (2, "a")], [(1, 2, "z")])
    assert moves(of) == [("a", "c", "zoneViolation", 1)]


def test_a_shard_that_gets_a_chunk_of_its_zone_gives_none_away_in_the_same_round() -> None:
    of = world([shard("a"), shard("b", "z"), shard("c", "y")], [(1, "a"), (2, "b")], [(0, 1, "z"), (1, 2, "y")])
    assert moves(of) == [("a", "b", "zoneViolation", 0)]


def test_without_a_shard_in_the_zone_its_chunks_stay() -> None:
    of = world([shard("a"), shard("b")], [(4, "a")], [(0, 4, "z")])
    assert moves(of) == []


def test_zones_are_evened_out_among_their_shards() -> None:
    of = world([shard("a", "z"), shard("b", "z"), shard("c")], [(6, "a")], [(0, 6, "z")])
    assert moves(of) == [("a", "b", "chunksImbalance", 0)]


def test_if_the_most_loaded_shard_has_nothing_of_a_zone_the_next_one_gives() -> None:
    shards = [shard("a"), shard("b", "z"), shard("c", "z")]
    of = world(shards, [(5, "b"), (5 + 9, "a")], [(0, 5, "z"), (5, 14, "nowhere")])
    assert moves(of) == [("b", "c", "chunksImbalance", 0)]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([3, 0], [("a", "b")]),
        ([2, 1], []),
        ([4, 2, 0], [("a", "c")]),
        ([1, 1, 0], []),
        ([5, 4, 0, 0], [("a", "c"), ("b", "d")]),
    ],
)
def test_chunk_counts(counts: list[int], expected: list[tuple[str, str]]) -> None:
    names = "abcd"[: len(counts)]
    owners = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
    chunks = [(number + 1, owner) for number, owner in enumerate(owners)]
    of = world([shard(name) for name in names], chunks, policy=Policy.CHUNK_COUNT)
    decided = of.decide().moves
    assert [(each.donor, each.recipient) for each in decided] == expected
    assert all(each.is_whole for each in decided)


def test_the_ideal_number_of_chunks_is_rounded_with_halves_up() -> None:
    assert [ideal_count(total, 2) for total in range(6)] == [0, 1, 1, 2, 2, 3]


def test_collections_that_are_to_be_left_alone_are_reported() -> None:
    of = world([shard("a"), shard("b")], [(9, "a")])
    decisions = drive(choose_moves(of.cluster, [of.collection(why_skipped="noBalance is set")]), of.answer)
    assert (decisions.moves, [each.reason for each in decisions.skipped]) == ([], ["noBalance is set"])


def test_compliance_names_the_first_rule_that_is_not_satisfied() -> None:
    shards = [shard("a"), shard("b", "z")]

    def violation(of: World) -> Rule | None:
        return drive(first_violation(of.cluster, of.collection(why_skipped="noBalance is set")), of.answer)

    assert violation(world(shards, [(2, "a")])) is None
    assert violation(world(shards, [(9, "a")])) is Rule.IMBALANCE
    assert violation(world(shards, [(9, "a")], [(1, 2, "z")])) is Rule.ZONE_VIOLATION
    assert violation(world(shards, [(1, "a")], [(0, 1, "z")])) is Rule.ZONE_VIOLATION
    assert violation(world([shard("a", draining=True), shard("b")], [(1, "a")])) is Rule.DRAINING


def test_a_quiet_round_asks_nothing() -> None:
    """However many collections and chunks there are, a collection with even sizes needs no questions."""
    shards = tuple(shard(name) for name in "ab")
    of = world(list(shards), [(1, "a"), (2, "b")])
    assert list(choose_moves(ClusterState(shards), [of.collection()] * 200)) == []


def test_parts_of_the_key_space() -> None:
    whole = world([], [(10, "a")])
    zones = ZoneMap(PATTERN, [(whole.bound(7), whole.bound(9), "y"), (whole.bound(2), whole.bound(5), "z")])
    assert [part.zone for part in zones.parts] == ["", "z", "", "y", ""]
    assert zones.zones == ("z", "y")
    key = PATTERN.key_bytes
    assert [zones.zone_of(key(whole.bound(each))) for each in (0, 2, 4, 5, 8, 9)] == ["", "z", "z", "", "y", ""]
    assert zones.ranges(frozenset({"", "y", "z"})) is None
    assert zones.ranges(frozenset({"unknown"})) == ()
    assert not ZoneMap(PATTERN).has_zones


def test_by_count_a_chunk_goes_where_its_zone_has_the_fewest() -> None:
    """Otherwise it would have to be moved again when the zone is evened out."""
    shards = [shard("a"), shard("b", "z"), shard("c", "z")]
    found = world(shards, [(1, "c"), (2, "c"), (3, "b"), (4, "a")], [(2, 4, "z")], policy=Policy.CHUNK_COUNT)
    assert moves(found)[0] == ("a", "c", "zoneViolation", 3)
