"""Clients that write registers and sets, and check every answer they get.

A *register* is a document with a ``value`` that its one owner raises by one with each write, and that all clients
read. A *set* is the documents that a client has added and not removed again. Every write is a retryable write, sent
until it is answered; so at any time its owner knows what a register holds and what is in the set. Each register has a
session of its own: then a message that was delayed on its way carries a number that its shard has seen, wherever the
register has moved.
"""

import random
import threading
import traceback
import uuid
from collections.abc import Sequence
from typing import Any, Final

from bson.binary import Binary

from tests.chaos.history import History
from tests.chaos.worlds import DATABASE, WORLDS, World
from tests.migration.retrying import RetryingClient, Session, Write, WriteRefusedError

Document = dict[str, Any]

REGISTERS: Final = 6
"""Per client and collection."""

ELEMENTS_MAX: Final = 120
"""Of one client's set in one collection."""

UNAVAILABLE_SECONDS_MAX: Final = 90.0
"""Longer without an answer is an anomaly: faults last for seconds."""


class Register:
    """A document whose value only rises.

    Attributes:
        document: as it must be now.
        written: its value as of the last acknowledged write; read by all clients.
    """

    def __init__(self, world: World, document: Document) -> None:
        self.world = world
        self.document = document
        self.session = Session()
        self.written = 0

    @property
    def query(self) -> Document:
        """A filter for it alone."""
        return self.world.query(self.document)


class CausalSession:
    """A session of reads, each of which happens after the one before; and the values that it has seen."""

    def __init__(self) -> None:
        self._lsid = {"id": Binary.from_uuid(uuid.uuid4())}
        self._gossip: Document = {}
        self._after: Document = {}
        self.seen: dict[Any, int] = {}

    def find(self, collection: str, query: Document) -> Document:
        """A find in this session."""
        concern = {"level": "majority", **self._after}
        return {"find": collection, "filter": query, "readConcern": concern, "lsid": self._lsid, **self._gossip}

    def advance(self, reply: Document) -> None:
        """Later reads happen after this one."""
        if "operationTime" in reply:
            self._after = {"afterClusterTime": max([reply["operationTime"], *self._after.values()])}
        if "$clusterTime" in reply:
            self._gossip = {"$clusterTime": reply["$clusterTime"]}


class ChaosClient(threading.Thread):
    """One client; a thread that runs until it is told to end or has found something wrong.

    Attributes:
        registers: its own.
        elements: its sets, by collection and ``_id``.
        operations: how many were answered.
        resent: how many had to be sent again.
    """

    def __init__(self, number: int, addresses: Sequence[str], history: History, seed: str) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.registers: list[Register] = []
        self.elements: dict[World, dict[str, Document]] = {world: {} for world in WORLDS}
        self.operations = 0
        # Like a driver's, few and in use for long: a migration has to look at all that were used lately.
        self._sessions = {world: Session() for world in WORLDS}
        self._history = history
        self._random = random.Random(f"{seed}/client/{number}")
        self._routers = RetryingClient(addresses)
        self._router = number
        self._others: Sequence[Register] = ()
        self._reader = CausalSession()
        self._numbers = 0
        self._is_stopping = threading.Event()

    @property
    def resent(self) -> int:
        """How many commands had to be sent again."""
        return self._routers.resent

    def create_registers(self) -> None:
        """Insert the own registers."""
        for world in WORLDS:
            for index in range(REGISTERS):
                identity = f"register/{self.number}/{index}"
                place = world.shard_key(self._random, identity)
                document = {"_id": identity, **place, "value": 0, "times": 0}
                register = Register(world, document)
                self._write(world, {"insert": world.name, "documents": [document]}, register.session, {"n": 1})
                self.registers.append(register)

    def watch(self, others: Sequence[Register]) -> None:
        """Read these registers too, from now on."""
        self._others = others

    def stop(self) -> None:
        """End after the operation under way."""
        self._is_stopping.set()

    def run(self) -> None:
        """Do random operations."""
        kinds = [
            *(self._raise, self._raise, self._modify, self._add, self._add, self._remove),
            *(self._read_own, self._read_other, self._read_other, self._read_set),
        ]
        try:
            while not self._is_stopping.is_set() and not self._history.failed.is_set():
                self._random.choice(kinds)()
                self._router = self._random.randrange(2)
                self.operations += 1
        except AssertionError as anomaly:
            self._history.anomaly(f"client {self.number}: {anomaly}")
        except BaseException as failure:
            self._history.anomaly(f"client {self.number} failed: {traceback.format_exception(failure)}")
        finally:
            self._routers.close()

    # Writes

    def _raise(self) -> None:
        register = self._random.choice(self.registers)
        value = register.document["value"] + 1
        change = {"$set": {"value": value}, "$inc": {"times": 1}}
        command = {"update": register.world.name, "updates": [{"q": register.query, "u": change}]}
        self._write(register.world, command, register.session, {"n": 1, "nModified": 1})
        self._written(register, value)

    def _modify(self) -> None:
        register = self._random.choice(self.registers)
        value = register.document["value"] + 1
        command = {
            "findAndModify": register.world.name,
            "query": register.query,
            "update": {"$set": {"value": value}, "$inc": {"times": 1}},
        }
        before = dict(register.document)
        expected = {"lastErrorObject": {"n": 1, "updatedExisting": True}, "value": before}
        self._write(register.world, command, register.session, expected)
        self._written(register, value)

    @staticmethod
    def _written(register: Register, value: int) -> None:
        register.document["value"] = value
        register.document["times"] += 1
        register.written = value

    def _add(self) -> None:
        world = self._random.choice(WORLDS)
        if len(self.elements[world]) >= ELEMENTS_MAX:
            return
        documents = []
        for _ in range(self._random.choice([1, 1, 3])):
            self._numbers += 1
            identity = f"element/{self.number}/{self._numbers}"
            place = world.shard_key(self._random, identity)
            documents.append({"_id": identity, **place, "owner": self.number, "text": "x" * 100})
        command = {"insert": world.name, "documents": documents, "ordered": False}
        self._write(world, command, self._sessions[world], {"n": len(documents)})
        self.elements[world].update((document["_id"], document) for document in documents)

    def _remove(self) -> None:
        world = self._random.choice(WORLDS)
        if not self.elements[world]:
            return
        document = self.elements[world][self._random.choice(list(self.elements[world]))]
        command = {"delete": world.name, "deletes": [{"q": world.query(document), "limit": 1}]}
        self._write(world, command, self._sessions[world], {"n": 1})
        del self.elements[world][document["_id"]]

    def _write(self, world: World, command: Document, session: Session, expected: Document) -> None:
        write = Write.of(DATABASE, command, session)
        self._history.add("write", client=self.number, router=self._router, body=write.body)
        answer = self._routers.run(write, router=self._router, within=UNAVAILABLE_SECONDS_MAX)
        self._history.add("written", client=self.number, txn=write.body["txnNumber"], answer=answer)
        assert answer == expected, f"{world.name}: {write.body} was answered {answer}, not {expected}"

    # Reads

    def _read_own(self) -> None:
        """What its owner reads is what it wrote."""
        register = self._random.choice(self.registers)
        found = self._find(register.world, {"find": register.world.name, "filter": register.query})
        assert found == [register.document], f"own register {register.document} reads as {found}"

    def _read_other(self) -> None:
        """What others read is not older than the last acknowledged write, nor than what the session has read before."""
        register = self._random.choice(self._others)
        seen, key = self._reader.seen, (register.world, register.document["_id"])
        least = max(register.written, seen.get(key, 0))
        found, reply = self._ask(register.world, self._reader.find(register.world.name, register.query))
        self._reader.advance(reply)
        values = [document["value"] for document in found]
        assert len(values) == 1, f"{key} reads as {found}"
        assert values[0] >= least, f"{key} reads as {values[0]} after {least}"
        seen[key] = values[0]

    def _read_set(self) -> None:
        """A set holds what was added and not removed."""
        world = self._random.choice(WORLDS)
        command = {"find": world.name, "filter": {"owner": self.number}, "batchSize": self._random.choice([5, 50, 500])}
        try:
            found = self._routers.read_all(DATABASE, command, router=self._router, within=UNAVAILABLE_SECONDS_MAX)
        except WriteRefusedError as error:
            raise AssertionError(f"{world.name}: {error}") from error
        identities = [document["_id"] for document in found]
        self._history.add("read set", client=self.number, router=self._router, body=command, found=identities)
        expected = self.elements[world]
        assert len(set(identities)) == len(identities), f"{world.name}: duplicated {sorted(identities)}"
        missing, extra = expected.keys() - set(identities), set(identities) - expected.keys()
        assert not missing, f"{world.name}: lost {sorted(missing)}"
        assert not extra, f"{world.name}: resurrected {sorted(extra)}"

    def _find(self, world: World, command: Document) -> list[Document]:
        return self._ask(world, command)[0]

    def _ask(self, world: World, command: Document) -> tuple[list[Document], Document]:
        """What a find finds, and its reply."""
        body = {**command, "readConcern": command.get("readConcern", {"level": "majority"})}
        self._history.add("read", client=self.number, router=self._router, body=body)
        try:
            reply = self._routers.read(DATABASE, body, router=self._router, within=UNAVAILABLE_SECONDS_MAX)
        except WriteRefusedError as error:
            raise AssertionError(f"{world.name}: {error}") from error
        found: list[Document] = reply["cursor"]["firstBatch"]
        self._history.add("found", client=self.number, found=[document["_id"] for document in found])
        return found, reply
