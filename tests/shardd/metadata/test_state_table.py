"""Which states of namespaces are kept, and which are forgotten."""

from shardwright.shardd.metadata.critical_section import CriticalSection
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.metadata.state_table import StateTable

IDLE_MAX = 100


def table() -> StateTable[NamespaceState]:
    return StateTable(lambda name: NamespaceState(name, "me"), IDLE_MAX)


def ask_for_many(states: StateTable[NamespaceState]) -> None:
    for number in range(50 * IDLE_MAX):
        states[f"db.unknown{number}"].learn(None)


def test_names_that_nobody_needs_are_forgotten() -> None:
    states = table()
    ask_for_many(states)
    assert len(states) <= 2 * IDLE_MAX


def test_a_state_that_somebody_holds_is_the_only_one_of_its_name() -> None:
    states = table()
    held = states["db.c"]
    ask_for_many(states)
    assert states["db.c"] is held


def test_a_state_that_is_at_work_is_kept_without_being_held() -> None:
    states = table()
    states["db.written"].enter(is_write=True)
    states["db.closed"].critical_section = CriticalSection({"command": "moveChunk"})
    ask_for_many(states)
    assert states["db.written"].writers == 1
    assert states["db.closed"].critical_section is not None
