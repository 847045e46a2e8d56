"""Clients' operations: a value for each of them, and the recorder that collects them from all threads."""

import json
import math
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

UNKNOWN: Final = math.inf
"""The end of an unanswered operation, which may take effect at any later time, or never."""


@dataclass(frozen=True)
class Operation:
    """One operation of one client.

    Attributes:
        client: the client, which runs one operation at a time.
        kind: the kind of operation in the workload's model, for example ``write`` or ``read``.
        key: the object of the operation.
        argument: the argument of the operation.
        result: the result; meaningless without a reply.
        began: `time.monotonic` before it was sent.
        ended: `time.monotonic` after the reply, or `UNKNOWN`.
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
        """Whether there was a reply."""
        return self.ended != UNKNOWN

    def __str__(self) -> str:
        ended = f"{self.ended:.4f}" if self.is_known else "unknown"
        return (
            f"{self.began:.4f} to {ended}: client {self.client} {self.kind} {self.key} {self.argument} = {self.result}"
        )


@dataclass
class Attempt:
    """An operation in progress, to be completed inside of `Recorder.attempt`.

    Attributes:
        result: to be set once there is a reply.
        is_answered: whether there was a reply.
        is_void: whether the operation certainly had no effect, so that it is not recorded.
    """

    result: Any = None
    is_answered: bool = False
    is_void: bool = False

    def answer(self, result: Any) -> None:  # noqa: ANN401 - whatever the workload's model understands
        """Record the operation's reply."""
        self.result, self.is_answered = result, True


@dataclass
class Recorder:
    """Collects the operations of all clients of a workload."""

    operations: list[Operation] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextmanager
    def attempt(self, client: int, kind: str, key: str, argument: Any = None) -> Iterator[Attempt]:  # noqa: ANN401
        """Record the operation in the block; without a call of ``answer`` its outcome is unknown."""
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
        """Several operations executed by one command."""
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
    """The operations as JSON, one per line."""
    return "".join(json.dumps(asdict(operation), default=str) + "\n" for operation in operations)
