"""Namespace states that are kept, and states that are dropped."""

from shardwright.shardd.metadata.namespace_state import CriticalSection, NamespaceState, StateTable

IDLE_MAX = 100


def table() -> StateTable[NamespaceState]:
    return StateTable(lambda name: NamespaceState(name, "me"), IDLE_MAX)


def ask_for_many(states: StateTable[NamespaceState]) -> None:
    for number in range(50 * IDLE_MAX):
        states[f"db.unknown{number}"].learn(None)


def test_unused_names_are_forgotten() -> None:
    states = table()
    ask_for_many(states)
    assert len(states) <= 2 * IDLE_MAX


def test_a_state_that_is_referred_to_is_not_duplicated() -> None:
    states = table()
    held = states["db.c"]
    ask_for_many(states)
    assert states["db.c"] is held


def test_a_busy_state_is_kept_even_if_nothing_refers_to_it() -> None:
    states = table()
    states["db.written"].enter(is_write=True)
    states["db.closed"].critical_section = CriticalSection({"command": "moveChunk"})
    ask_for_many(states)
    assert states["db.written"].writers == 1
    assert states["db.closed"].critical_section is not None
