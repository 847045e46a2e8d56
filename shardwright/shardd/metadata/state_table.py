"""The states of namespaces, or of databases, in use; unused ones are forgotten.

Clients can name any number of namespaces that do not exist. The state of such a name can be recreated cheaply, so only
some idle states are kept. A state that an operation, a refresh or a critical section refers to is never duplicated: it
stays in the table for as long as it is referred to.
"""

from collections.abc import Callable, Iterator
from typing import Final, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

IDLE_STATES_MAX: Final = 2_000


class Idle(Protocol):
    """A state that can be forgotten when it is idle."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost if the state is recreated."""


State = TypeVar("State", bound=Idle)


class StateTable(Generic[State]):
    """States by name.

    Args:
        make: creates the state for a name.
        idle_max: approximate number of idle states to keep.
    """

    def __init__(self, make: Callable[[str], State], idle_max: int = IDLE_STATES_MAX) -> None:
        self._make = make
        self._idle_max = idle_max
        self._all: WeakValueDictionary[str, State] = WeakValueDictionary()
        self._kept: dict[str, State] = {}
        self._next_sweep = idle_max

    def __getitem__(self, name: str) -> State:
        """The state for a name, created if it does not exist."""
        state = self._kept.get(name)
        if state is None:
            state = self._all.get(name) or self._make(name)
            self._all[name] = self._kept[name] = state
            if len(self._kept) > self._next_sweep:
                self._forget_idle()
        return state

    def find(self, name: str) -> State | None:
        """The state for a name, None if it does not exist."""
        return self._all.get(name)

    def __iter__(self) -> Iterator[State]:
        """All existing states."""
        return iter(list(self._all.values()))

    def __len__(self) -> int:
        """Number of existing states."""
        return len(self._all)

    def _forget_idle(self) -> None:
        """Forget the older half of the idle states; states that cannot be forgotten delay the next sweep."""
        idle = [name for name, state in self._kept.items() if state.is_idle]
        for name in idle[: max(len(idle) - self._idle_max // 2, 0)]:
            del self._kept[name]
        self._next_sweep = len(self._kept) + self._idle_max // 2
