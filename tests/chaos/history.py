"""The history of a run: every operation of the clients, every move, every fault, in order."""

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any


class History:
    """Events as JSON lines in a file, and the anomalies among them; used by all threads.

    Attributes:
        anomalies: descriptions of events that must not happen.
        counts: the number of events, by kind.
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
        """Record an event, with the seconds since the start of the run."""
        at = round(time.monotonic() - self._began, 6)
        line = json.dumps({"at": at, "kind": kind, **fields}, default=str)
        with self._lock:
            self.counts[kind] += 1
            if not self._file.closed:
                self._file.write(line + "\n")

    def anomaly(self, text: str) -> None:
        """Record an anomaly, which ends the run."""
        self.add("anomaly", text=text)
        with self._lock:
            self.anomalies.append(text)
            self._file.flush()
        self.failed.set()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()
