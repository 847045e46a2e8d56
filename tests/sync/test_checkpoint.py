"""The rule by which two ends agree where a replication resumes."""

from dataclasses import dataclass, field

import pytest
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sync.checkpoint import (
    COUNTERS,
    HISTORY_DENSE,
    HISTORY_MAX,
    Checkpoint,
    Session,
    agreement,
    is_change,
    recorded,
)


def session(number: int, *, start: float = 0.0, read: int = 0) -> Session:
    return Session(
        f"session {number}",
        start,
        float(number),
        Timestamp(1, 1),
        Timestamp(1 + number, 1),
        counters={"documents_read": read},
    )


def checkpoint(*numbers: int) -> Checkpoint:
    """With these sessions, newest first."""
    return Checkpoint(tuple(session(each) for each in numbers))


@pytest.mark.parametrize(
    ("source", "target", "last", "is_exact"),
    [
        (None, None, None, False),
        (checkpoint(1), None, None, False),
        (None, checkpoint(1), None, False),
        (checkpoint(2, 1), checkpoint(2, 1), 2, True),
        # The process ended between the two writes of a checkpoint, or the target was restored.
        (checkpoint(3, 2, 1), checkpoint(2, 1), 2, True),
        # The source was restored to an earlier moment.
        (checkpoint(2, 1), checkpoint(4, 3, 2, 1), 2, False),
        # Both were.
        (checkpoint(5, 2, 1), checkpoint(4, 3, 2, 1), 2, False),
        (checkpoint(1), checkpoint(2), None, False),
    ],
)
def test_the_newest_common_session_counts(
    source: Checkpoint | None, target: Checkpoint | None, last: int | None, *, is_exact: bool
) -> None:
    found = agreement(source, target)
    assert found.last == (None if last is None else Timestamp(1 + last, 1))
    assert found.is_exact is is_exact


def test_a_checkpoint_is_what_was_stored() -> None:
    found = checkpoint(3, 2, 1)
    assert Checkpoint.from_document({"_id": "any", "term": 1, **found.document()}) == Checkpoint(
        tuple(
            Session(
                each.session_id,
                each.start_time,
                each.end_time,
                each.start_last,
                each.end_last,
                each.copied,
                {name: each.counters.get(name, 0) for name in COUNTERS},
            )
            for each in found.history
        )
    )
    assert Checkpoint.from_document(None) is None
    assert Checkpoint.from_document({"_id": "any", "term": 1}) is None


def test_nothing_is_recorded_if_nothing_has_changed() -> None:
    first = recorded(None, session(1, read=5))
    again = Session("another", 0.0, 9.0, Timestamp(2, 1), Timestamp(2, 1), counters={"documents_read": 5})
    assert is_change(None, session(1))
    assert not is_change(first, again)
    assert not is_change(first, session(2, read=5))
    assert is_change(first, session(1, read=6))
    # Another process counts from zero.
    assert not is_change(first, session(2, start=5.0))
    assert is_change(first, session(2, start=5.0, read=1))


@given(st.lists(st.integers(0, 5), max_size=120))
def test_history_is_bounded_and_reaches_back_to_each_process(steps: list[int]) -> None:
    """Each step is the number of a process that records a checkpoint."""
    found: Checkpoint | None = None
    for number, process in enumerate(sorted(steps)):
        found = recorded(found, session(number, start=float(process)))
    if found is None:
        return
    assert len(found.history) <= HISTORY_MAX
    numbers = [int(each.session_id.removeprefix("session ")) for each in found.history]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[:HISTORY_DENSE] == list(range(len(steps) - 1, len(steps) - 1 - HISTORY_DENSE, -1))[: len(steps)]
    assert {each.start_time for each in found.history} == {float(each) for each in steps}


@dataclass
class End:
    """An end of a replication, with the backups that were made of it.

    Attributes:
        stored: its checkpoint.
        backups: earlier ones.
    """

    stored: Checkpoint | None = None
    backups: list[Checkpoint | None] = field(default_factory=list)


STEPS = st.lists(
    st.sampled_from(
        ["both", "source only", "target only", "backup", "restore source", "restore target", "lose source"]
    ),
    max_size=40,
)


@given(STEPS)
def test_an_agreement_is_never_later_than_what_both_ends_have_recorded(steps: list[str]) -> None:
    """Whatever is restored, lost, or interrupted between the two writes of a checkpoint."""
    source, target = End(), End()
    for number, step in enumerate(steps):
        if step in ("both", "source only", "target only"):
            # As the process does: the history of the target leads.
            new = recorded(target.stored, session(number))
            if step != "target only":
                source.stored = new
            if step != "source only":
                target.stored = new
        elif step == "backup":
            source.backups.append(source.stored)
            target.backups.append(target.stored)
        elif step == "restore source" and source.backups:
            source.stored = source.backups[0]
        elif step == "restore target" and target.backups:
            target.stored = target.backups[0]
        elif step == "lose source":
            source.stored = None
    found = agreement(source.stored, target.stored)
    if found.last is None:
        return
    assert source.stored is not None
    assert target.stored is not None
    assert found.last in {each.end_last for each in source.stored.history}
    assert found.last in {each.end_last for each in target.stored.history}
    assert found.last <= min(source.stored.last, target.stored.last)
    if found.is_exact:
        assert found.last == target.stored.last
