"""Append-lists: transactions that read lists and append unique values to them, on several shards."""

import threading
from typing import Final

from tests.chaos.checkers.append_history import Append, Outcome, Read, Transaction
from tests.chaos.checkers.append_lists import check_append_lists
from tests.chaos.stage import Document, Stage, StageClient, scanned
from tests.chaos.transactions import ClientTransaction, TransactionAbortedError
from tests.chaos.workloads.base import Workload
from tests.chaos.workloads.endings import end_transactions
from tests.chaos.worlds import HASHED, RANGED, World

ACTIVE: Final = 10
"""The number of lists in use; few enough for transactions to meet."""

LENGTH_MAX: Final = 40
"""A list that is longer is replaced by a new one, so that reads stay short."""

DUPLICATE_KEY: Final = 11000
"""Of two upserts of a new list one may fail."""

STEPS_MAX: Final = 5
LEVELS: Final = ("snapshot", "snapshot", "majority", "local")

Steps = list[Read | Append]


class AppendLists(Workload):
    """See the module."""

    name = "append_lists"
    clients = 5

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._lists: dict[str, tuple[World, Document]] = {}
        self._active: list[str] = []
        self._appended: dict[str, int] = {}
        self._lock = threading.Lock()

    def set_up(self) -> None:
        """Shard the collections; a list begins to exist with its first value."""
        self.stage.create(RANGED, HASHED)

    def step(self, client: StageClient) -> None:
        """Mostly a transaction."""
        draw = client.random.random()
        if draw < 0.7:
            self._run_transaction(client)
        else:
            client.random.choice([self._append_alone, self._read_alone, self._read_snapshot])(client)

    def check(self) -> list[str]:
        """Everything is explained by snapshot isolation."""
        end_transactions(self.stage)
        return self.check_history()

    def check_history(self) -> list[str]:
        """The anomalies of everything that clients have seen, and of the lists now."""
        final: dict[str, list[int]] = {key: [] for key in self._lists}
        for world in (RANGED, HASHED):
            final.update((each["_id"], each["values"]) for each in self.stage.collections[world.name].find())
        found = [each.result for each in self.stage.recorder.operations if isinstance(each.result, Transaction)]
        return check_append_lists(found, final)

    def _some_list(self, client: StageClient, *, appends: int = 0) -> str:
        """A list in use, or a new one, and the number of values that will be appended to it."""
        with self._lock:
            if len(self._active) < ACTIVE:
                world = client.random.choice([RANGED, HASHED])
                key = client.new_identity(world.name)
                self._lists[key] = (world, {"_id": key, **world.shard_key(client.random, key)})
                self._active.append(key)
            key = client.random.choice(self._active)
            self._appended[key] = self._appended.get(key, 0) + appends
            if self._appended[key] > LENGTH_MAX:
                self._active.remove(key)
            return key

    def _run_transaction(self, client: StageClient) -> None:
        name, steps, outcome = f"{client.number}/{client.new_value()}", list[Read | Append](), Outcome.ABORTED
        with self.stage.recorder.attempt(client.number, "transaction", name) as attempt:
            transaction = ClientTransaction(client, client.random.choice(LEVELS))
            try:
                for _ in range(client.random.randint(1, STEPS_MAX)):
                    client.random.choice([self._read, self._read_some, self._append, self._exchange])(
                        client, transaction, steps
                    )
                if client.random.random() < 0.95:
                    outcome = transaction.commit(is_patient=client.random.random() < 0.9)
                else:
                    transaction.abort()
            except TransactionAbortedError:
                pass
            attempt.answer(Transaction(name, tuple(steps), outcome, transaction.level == "snapshot"))

    def _read(self, client: StageClient, transaction: ClientTransaction, steps: Steps) -> None:
        key = self._some_list(client)
        world, document = self._lists[key]
        reply = transaction.run({"find": world.name, "filter": document})
        steps.append(_read_of(key, reply["cursor"]["firstBatch"]))

    def _read_some(self, client: StageClient, transaction: ClientTransaction, steps: Steps) -> None:
        """Several lists by one command, on any shards."""
        world = self._lists[self._some_list(client)][0]
        keys = self._active_in(world)
        reply = transaction.run({"find": world.name, "filter": {"_id": {"$in": keys}}})
        steps += [_read_of(key, _only(reply["cursor"]["firstBatch"], key)) for key in keys]

    def _append(self, client: StageClient, transaction: ClientTransaction, steps: Steps) -> None:
        key, value = self._some_list(client, appends=1), client.new_value()
        # Recorded first: a statement without a reply may have been executed.
        steps.append(Append(key, value))
        reply = transaction.run(self._push(key, value))
        assert reply["n"] == 1, f"the append of {value} to {key} was answered {reply}"

    def _exchange(self, client: StageClient, transaction: ClientTransaction, steps: Steps) -> None:
        """Read and append at once."""
        key, value = self._some_list(client, appends=1), client.new_value()
        world, document = self._lists[key]
        command = {"findAndModify": world.name, "query": document, "update": {"$push": {"values": value}}}
        before = transaction.run({**command, "upsert": True})["value"]
        steps += [_read_of(key, [before] if before else []), Append(key, value)]

    def _append_alone(self, client: StageClient) -> None:
        """A retryable write."""
        key, value = self._some_list(client, appends=1), client.new_value()
        with self.stage.recorder.attempt(client.number, "append", f"{value}") as attempt:
            said = client.write(self._push(key, value), session=key)
            if [error["code"] for error in said.get("writeErrors", ())] == [DUPLICATE_KEY]:
                attempt.is_void = True
                return
            assert said["n"] == 1, f"the append of {value} to {key} was answered {said}"
            attempt.answer(Transaction(f"append {value}", (Append(key, value),), is_snapshot=False))

    def _read_alone(self, client: StageClient) -> None:
        key = self._some_list(client)
        world, document = self._lists[key]
        name = f"{client.number}/{client.new_value()}"
        with self.stage.recorder.attempt(client.number, "read", name) as attempt:
            command = {"find": world.name, "filter": document, "readConcern": {"level": "majority"}}
            found = _read_of(key, client.read(command)["cursor"]["firstBatch"])
            attempt.answer(Transaction(name, (found,), is_snapshot=False))

    def _read_snapshot(self, client: StageClient) -> None:
        """Several lists outside of transactions."""
        world = self._lists[self._some_list(client)][0]
        keys, name = self._active_in(world), f"{client.number}/{client.new_value()}"
        with self.stage.recorder.attempt(client.number, "snapshot", name) as attempt:
            command = {"find": world.name, "filter": {"_id": {"$in": keys}}, "readConcern": {"level": "snapshot"}}
            found = scanned(list(client.scan(command, 1000)))
            if found is not None:
                attempt.answer(Transaction(name, tuple(_read_of(key, _only(found, key)) for key in keys)))

    def _active_in(self, world: World) -> list[str]:
        with self._lock:
            return [key for key in self._active if self._lists[key][0] is world]

    def _push(self, key: str, value: int) -> Document:
        world, document = self._lists[key]
        return {
            "update": world.name,
            "updates": [{"q": document, "u": {"$push": {"values": value}}, "upsert": True}],
        }


def _only(documents: list[Document], key: str) -> list[Document]:
    return [document for document in documents if document["_id"] == key]


def _read_of(key: str, documents: list[Document]) -> Read:
    assert len(documents) <= 1, f"{key} is there twice: {documents}"
    return Read(key, tuple(documents[0]["values"]) if documents else ())
