"""A dry run of a collection's defragmentation: the next decisions of its phase, with their reasons."""

from collections.abc import AsyncIterator
from typing import Final, TypeAlias

from shardwright.configd.balancer.configuration import Configuration
from shardwright.configd.balancer.defragmentation.situation import (
    Situation,
    chunks_in_order,
    decide_about_small,
    neighbours_of,
    next_small_chunk,
    read_situation,
)
from shardwright.configd.term.term import Term
from shardwright.sharding.balancing.decisions import Measure, Merge, Move, Rule, Skipped
from shardwright.sharding.balancing.defragmentation import (
    UNKNOWN_SHARD,
    WAITS_FOR_NEIGHBOUR,
    MeasuredChunk,
    merge_of,
    move_of,
    runs,
    stays,
    steps_of_run,
)
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.wire.errors import CommandError

STEPS_MAX: Final = 100
"""Maximum number of decisions in the explanation of a collection; a final entry says that more exist."""

_PHASES: Final = {each.value: each for each in (Rule.MERGE_AND_MEASURE, Rule.MOVE_AND_MERGE, Rule.MERGE)}

Step: TypeAlias = Move | Merge | Measure | Skipped


async def next_steps(term: Term, entry: CollectionEntry, configuration: Configuration) -> list[Step]:
    """Return the decisions of the phase for the present chunks, and the chunks that it skips.

    Errors as `Catalog.find`.
    """
    rule = _PHASES.get(entry.defragmentation_phase or "", Rule.MERGE_AND_MEASURE)
    if not entry.may_migrate:
        return [Skipped(entry.namespace, "migrations of the collection are not permitted", rule)]
    try:
        situation = await read_situation(term, entry, configuration)
    except CommandError as error:
        return [Skipped(entry.namespace, f"its zones do not fit its shard key: {error}", rule)]
    steps: list[Step] = []
    found = _small_chunks(term, situation) if rule is Rule.MOVE_AND_MERGE else _runs(term, situation, rule)
    async for each in found:
        if len(steps) >= STEPS_MAX:
            steps.append(Skipped(entry.namespace, f"only the first {STEPS_MAX} decisions of the phase are shown", rule))
            break
        steps.append(each)
    return steps


async def _runs(term: Term, situation: Situation, rule: Rule) -> AsyncIterator[Step]:
    rest: list[MeasuredChunk] = []
    async for page in chunks_in_order(term.catalog, situation.entry):
        *complete, rest = runs([*rest, *page], situation.zones)
        for run in complete:
            for each in _steps(situation, run, rule):
                yield each
    for each in _steps(situation, rest, rule) if rest else ():
        yield each


def _steps(situation: Situation, run: list[MeasuredChunk], rule: Rule) -> list[Step]:
    namespace, zones = situation.entry.namespace, situation.zones
    steps = [each for each in steps_of_run(namespace, run, zones, situation.threshold, rule) if each is not None]
    if steps and run[0].shard not in situation.shards:
        return [stays(namespace, run[0], zones, rule, UNKNOWN_SHARD)]
    return [*steps]


async def _small_chunks(term: Term, situation: Situation) -> AsyncIterator[Step]:
    """Yield the decisions about all small chunks that do not depend on the result of an earlier one."""
    entry, zones, threshold = situation.entry, situation.zones, situation.threshold
    above: bytes | None = None
    changed_up_to = b""
    while chunk := await next_small_chunk(term.catalog, entry, threshold, above):
        above = chunk.range.min
        neighbours = await neighbours_of(term.catalog, entry, chunk)
        if any(each.range.min_key < changed_up_to for each in (*neighbours, chunk)):
            yield stays(entry.namespace, chunk, zones, Rule.MOVE_AND_MERGE, WAITS_FOR_NEIGHBOUR)
            continue
        decided = decide_about_small(situation, chunk, neighbours)
        if isinstance(decided, Skipped):
            yield decided
            continue
        if decided.is_move:
            yield move_of(entry.namespace, decided, zones, threshold)
        yield merge_of(entry.namespace, decided.parts, decided.recipient, zones, threshold, Rule.MOVE_AND_MERGE)
        changed_up_to = decided.parts[-1].range.max_key
