"""What clients did: one value for each operation, and the recorder that collects them from all threads."""

import json
import math
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

UNKNOWN: Final = math.inf
"""When an operation ended that nobody has answered: it may take effect at any later time, or never."""


@dataclass(frozen=True)
class Operation:
    """One operation of one client.

    Attributes:
        client: who did it; a client does one thing at a time.
        kind: what it did, in the words of the workload's model, for example ``write`` or ``read``.
        key: what it was done to.
        argument: what was asked for.
        result: what was answered; meaningless if nobody answered.
        began: seconds of `time.monotonic` before it was sent.
        ended: after it was answered, or `UNKNOWN`.
    """

    client: int
    kind: str
    key: str
    argument: Any
    result: Any
    began: float
    ended: float

    @property
    def is_known(self) -> bool:
        """Whether it was answered."""
        return self.ended != UNKNOWN

    def __str__(self) -> str:
        ended = f"{self.ended:.4f}" if self.is_known else "unknown"
        return (
            f"{self.began:.4f} to {ended}: client {self.client} {self.kind} {self.key} {self.argument} = {self.result}"
        )


@dataclass
class Attempt:
    """An operation under way, to be completed inside of `Recorder.attempt`.

    Attributes:
        result: set it once there is an answer.
        is_answered: whether it was.
        is_void: the operation certainly had no effect, and is not recorded.
    """

    result: Any = None
    is_answered: bool = False
    is_void: bool = False

    def answer(self, result: Any) -> None:  # noqa: ANN401 - whatever the workload's model understands
        """The operation was answered."""
        self.result, self.is_answered = result, True


@dataclass
class Recorder:
    """Collects the operations of all clients of a workload."""

    operations: list[Operation] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextmanager
    def attempt(self, client: int, kind: str, key: str, argument: Any = None) -> Iterator[Attempt]:  # noqa: ANN401
        """Record what happens in the block; an operation whose block answers nothing has an unknown outcome."""
        attempt, began = Attempt(), time.monotonic()
        try:
            yield attempt
        finally:
            ended = time.monotonic() if attempt.is_answered else UNKNOWN
            if not attempt.is_void:
                operation = Operation(client, kind, key, argument, attempt.result, began, ended)
                with self._lock:
                    self.operations.append(operation)

    @contextmanager
    def attempt_all(self, client: int, kind: str, key: str, arguments: Iterable[Any]) -> Iterator[list[Attempt]]:
        """Several operations that one command does at once."""
        with ExitStack() as attempts:
            yield [attempts.enter_context(self.attempt(client, kind, key, argument)) for argument in arguments]

    def by_key(self) -> dict[str, list[Operation]]:
        """The operations of each key, in the order in which they began."""
        with self._lock:
            ordered = sorted(self.operations, key=lambda operation: operation.began)
        grouped: dict[str, list[Operation]] = {}
        for operation in ordered:
            grouped.setdefault(operation.key, []).append(operation)
        return grouped


def as_json_lines(operations: Iterable[Operation]) -> str:
    """The operations as JSON, one a line."""
    return "".join(json.dumps(asdict(operation), default=str) + "\n" for operation in operations)
