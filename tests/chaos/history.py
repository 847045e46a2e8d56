"""What happened in a run, in order: every operation of the clients, every move, every fault."""

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any


class History:
    """Events as JSON lines in a file, and the anomalies among them; used by all threads.

    Attributes:
        anomalies: what must not have been, in words.
        counts: how many events there were, by kind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.anomalies: list[str] = []
        self.counts: Counter[str] = Counter()
        self.failed = threading.Event()
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._file = path.open("w", encoding="utf-8")

    def add(self, kind: str, **fields: Any) -> None:  # noqa: ANN401 - whatever describes the event
        """Write an event down, with the seconds since the run began."""
        at = round(time.monotonic() - self._began, 6)
        line = json.dumps({"at": at, "kind": kind, **fields}, default=str)
        with self._lock:
            self.counts[kind] += 1
            if not self._file.closed:
                self._file.write(line + "\n")

    def anomaly(self, text: str) -> None:
        """Write down what must not have been; the run ends."""
        self.add("anomaly", text=text)
        with self._lock:
            self.anomalies.append(text)
            self._file.flush()
        self.failed.set()

    def close(self) -> None:
        """Nothing is written any more."""
        with self._lock:
            self._file.close()
