"""Writers with retryable writes that know, document by document, the expected result."""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.integration.waiting import eventually
from tests.migration.retrying import RetryingClient, Session, Write
from tests.sampling import many

Document = dict[str, Any]

KEYS: Final = 900
"""Shard keys of writers are from 0 up to this number."""

WRITERS: Final = 3
KEPT_SHARE: Final = 0.5
"""The share of writes that are retried at the end."""

PAUSE_SECONDS: Final = many(0, 10) / 1000
"""Of a writer between two writes. Writers that never pause take both cores of a small machine, and most of what they
write is written while the test waits for something else."""

JOIN_SECONDS_MAX: Final = 90.0


@dataclass(frozen=True)
class Acknowledged:
    """A write and its reply."""

    write: Write
    answer: Document


class Writer:
    """One thread's writes, all on its own documents; every second write is retried through the other router.

    Some of the writes have a session of their own and can thus be retried at any later time; of the others, which share
    a session, only the newest can.

    Args:
        number: distinguishes the writers.
        namespace: the collection.
        addresses: the addresses of the routers.
        seed: determines what it writes.
        kept_share: the share of writes that have a session of their own.

    Attributes:
        model: the expected documents, by ``_id``.
        kept: the writes to retry at the end.
        acknowledged: number of acknowledged writes.
    """

    def __init__(
        self, number: int, namespace: str, addresses: Sequence[str], *, seed: int = 0, kept_share: float = KEPT_SHARE
    ) -> None:
        self.number = number
        self.model: dict[str, Document] = {}
        self.kept: list[Acknowledged] = []
        self.acknowledged = 0
        self._database, _, self._collection = namespace.partition(".")
        self._kept_share = kept_share
        self._client = RetryingClient(addresses)
        self._random = random.Random(f"{seed}/{number}")
        self._session = Session()
        self._inserted = 0

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def write_once(self) -> None:
        """Send one random write, and retry it at once or remember it for later.

        Raises:
            AssertionError: a reply was wrong, or did not arrive in time.
        """
        kinds = [
            *(self._insert, self._insert_some, self._increment, self._replace, self._update_some),
            *(self._modify_before, self._modify_after, self._remove, self._delete),
        ]
        command, expected = self._random.choice(kinds if len(self.model) > 10 else kinds[:2])()
        is_kept = self._random.random() < self._kept_share
        write = Write.of(self._database, command, Session() if is_kept else self._session)
        router = self._random.randrange(2)
        answer = self._client.run(write, router=router)
        assert answer == expected, f"{write}: {answer}, expected {expected}"
        self.acknowledged += 1
        if is_kept:
            self.kept.append(Acknowledged(write, answer))
        elif self._random.random() < 0.5:
            again = self._client.run(write, router=router + 1)
            assert again == answer, f"{write}: {again} when retried, {answer} before"

    def retry_kept(self) -> None:
        """Send every remembered write again, through the second router.

        Raises:
            AssertionError: a reply differs from the first one.
        """
        for each in self.kept:
            again = self._client.run(each.write, router=1)
            assert again == each.answer, f"{each.write}: {again} when retried in the end, {each.answer} before"

    # Kinds of writes: the command, and the expected reply. The model records the effect of the write.

    def _new(self) -> Document:
        self._inserted += 1
        identity = f"{self.number}/{self._inserted}"
        self.model[identity] = {"_id": identity, "key": self._random.randrange(KEYS), "times": 0, "text": "x" * 50}
        return dict(self.model[identity])

    def _some(self) -> Document:
        return self.model[self._random.choice(list(self.model))]

    @staticmethod
    def _query(document: Document) -> Document:
        return {"key": document["key"], "_id": document["_id"]}

    def _insert(self) -> tuple[Document, Document]:
        return {"insert": self._collection, "documents": [self._new()]}, {"n": 1}

    def _insert_some(self) -> tuple[Document, Document]:
        """Documents on several shards, so that the statements of one write go to different shards."""
        documents = [self._new() for _ in range(4)]
        return {"insert": self._collection, "documents": documents, "ordered": self._random.random() < 0.5}, {"n": 4}

    def _increment(self) -> tuple[Document, Document]:
        document = self._some()
        document["times"] += 1
        statement = {"q": self._query(document), "u": {"$inc": {"times": 1}}}
        return {"update": self._collection, "updates": [statement]}, {"n": 1, "nModified": 1}

    def _replace(self) -> tuple[Document, Document]:
        document = self._some()
        document["times"] += 1
        document["text"] = "y" * 60
        statement = {"q": self._query(document), "u": dict(document)}
        return {"update": self._collection, "updates": [statement]}, {"n": 1, "nModified": 1}

    def _update_some(self) -> tuple[Document, Document]:
        documents = self._random.sample(list(self.model.values()), 3)
        statements = []
        for document in documents:
            document["times"] += 1
            statements.append({"q": self._query(document), "u": {"$inc": {"times": 1}}})
        return {"update": self._collection, "updates": statements}, {"n": 3, "nModified": 3}

    def _modify_before(self) -> tuple[Document, Document]:
        return self._find_and_modify(new=False)

    def _modify_after(self) -> tuple[Document, Document]:
        return self._find_and_modify(new=True)

    def _find_and_modify(self, *, new: bool) -> tuple[Document, Document]:
        document = self._some()
        before = dict(document)
        document["times"] += 1
        update = {"$inc": {"times": 1}}
        command = {"findAndModify": self._collection, "query": self._query(document), "update": update, "new": new}
        outcome = {"n": 1, "updatedExisting": True}
        return command, {"lastErrorObject": outcome, "value": dict(document) if new else before}

    def _remove(self) -> tuple[Document, Document]:
        document = self._some()
        del self.model[document["_id"]]
        command = {"findAndModify": self._collection, "query": self._query(document), "remove": True}
        return command, {"lastErrorObject": {"n": 1}, "value": dict(document)}

    def _delete(self) -> tuple[Document, Document]:
        document = self._some()
        del self.model[document["_id"]]
        statement = {"q": self._query(document), "limit": 1}
        return {"delete": self._collection, "deletes": [statement]}, {"n": 1}


class Writers:
    """Several writers, a thread each.

    Attributes:
        writers: the writers.
        failures: their failures, at most one for each.
    """

    def __init__(self, namespace: str, addresses: Sequence[str], *, kept_share: float = KEPT_SHARE) -> None:
        self.writers = [Writer(number, namespace, addresses, kept_share=kept_share) for number in range(WRITERS)]
        self.failures: list[BaseException] = []
        self._is_stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(writer,), daemon=True) for writer in self.writers]

    @property
    def model(self) -> dict[str, Document]:
        """The expected documents, by ``_id``, once the writers have ended."""
        return {identity: document for writer in self.writers for identity, document in writer.model.items()}

    @property
    def acknowledged(self) -> int:
        """Number of writes acknowledged so far."""
        return sum(writer.acknowledged for writer in self.writers)

    @property
    def retried(self) -> int:
        """Number of writes that will have been retried at the end."""
        return sum(len(writer.kept) for writer in self.writers)

    def start(self) -> None:
        """Start them."""
        for thread in self._threads:
            thread.start()

    def wait_for_progress(self, writes: int = 30, *, within: float = 60.0) -> None:
        """Wait until each has had a number of further writes acknowledged.

        Raises:
            AssertionError: that took too long, or a writer has failed.
        """
        goals = [(writer, writer.acknowledged + writes // len(self.writers)) for writer in self.writers]

        def have_got_on() -> bool:
            self.check()
            return all(writer.acknowledged >= goal for writer, goal in goals)

        eventually(have_got_on, within=within, what="writers get on")

    def stop(self) -> None:
        """Stop them, and wait until they have ended."""
        self._is_stopping.set()
        for thread in self._threads:
            thread.join(JOIN_SECONDS_MAX)
        assert not any(thread.is_alive() for thread in self._threads), "a writer hangs"

    def check(self) -> None:
        """Raise the first failure of a writer."""
        if self.failures:
            raise self.failures[0]

    def retry_kept(self) -> None:
        """Retry all remembered writes, all writers concurrently.

        Raises:
            AssertionError: a reply differs from the first one.
        """
        threads = [threading.Thread(target=self._guard, args=(writer.retry_kept,)) for writer in self.writers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(JOIN_SECONDS_MAX)
        self.close()
        assert not any(thread.is_alive() for thread in threads), "a retried write hangs"
        self.check()

    def close(self) -> None:
        """Close all connections."""
        for writer in self.writers:
            writer.close()

    def _run(self, writer: Writer) -> None:
        def write() -> None:
            while not self._is_stopping.wait(PAUSE_SECONDS):
                writer.write_once()

        self._guard(write)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:
            self.failures.append(failure)


@contextmanager
def writing(namespace: str, addresses: Sequence[str], *, kept_share: float = KEPT_SHARE) -> Iterator[Writers]:
    """Run writers until the block ends, and check then that none of them has failed."""
    writers = Writers(namespace, addresses, kept_share=kept_share)
    writers.start()
    try:
        yield writers
    finally:
        try:
            writers.stop()
        finally:
            writers.close()
    writers.check()
