"""The states of namespaces, or of databases, that were asked for; those that nobody needs are forgotten.

Clients can ask for any number of names that do not exist. What is known of such a name is found out again at little
cost, so only some idle states are kept. A state that an operation, a refresh or a critical section holds is never made
a second time: it stays in the table for as long as it is held.
"""

from collections.abc import Callable, Iterator
from typing import Final, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

IDLE_STATES_MAX: Final = 2_000


class Idle(Protocol):
    """What has a name in the table."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost when the state is made again."""


State = TypeVar("State", bound=Idle)


class StateTable(Generic[State]):
    """States by name.

    Args:
        make: makes the state of a name.
        idle_max: how many idle states are kept, roughly.
    """

    def __init__(self, make: Callable[[str], State], idle_max: int = IDLE_STATES_MAX) -> None:
        self._make = make
        self._idle_max = idle_max
        self._all: WeakValueDictionary[str, State] = WeakValueDictionary()
        self._kept: dict[str, State] = {}
        self._next_sweep = idle_max

    def __getitem__(self, name: str) -> State:
        """The state of a name, made when first asked for."""
        state = self._kept.get(name)
        if state is None:
            state = self._all.get(name) or self._make(name)
            self._all[name] = self._kept[name] = state
            if len(self._kept) > self._next_sweep:
                self._forget_idle()
        return state

    def find(self, name: str) -> State | None:
        """The state of a name if there is one."""
        return self._all.get(name)

    def __iter__(self) -> Iterator[State]:
        """All states there are."""
        return iter(list(self._all.values()))

    def __len__(self) -> int:
        """How many states there are."""
        return len(self._all)

    def _forget_idle(self) -> None:
        """Forget the older half of the idle ones; states that cannot be forgotten put the next sweep off."""
        idle = [name for name, state in self._kept.items() if state.is_idle]
        for name in idle[: max(len(idle) - self._idle_max // 2, 0)]:
            del self._kept[name]
        self._next_sweep = len(self._kept) + self._idle_max // 2
