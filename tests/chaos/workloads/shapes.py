"""Collections that are sharded, refined, renamed over each other, moved and dropped, compared with a model of them.

The first client makes the changes and writes to the changed collections, so it knows their contents. It repeats a
change until it has been made. The others write to a collection of the same database that stays unchanged.
"""

import time
from typing import Final

from shardwright.wire.error_codes import ErrorCode
from tests.chaos.stage import UNAVAILABLE_SECONDS_MAX, Document, Stage, StageClient, is_done
from tests.chaos.workloads.base import Workload
from tests.chaos.workloads.endings import check_documents
from tests.chaos.worlds import RANGED, World
from tests.integration.sharded import LOWER, UPPER
from tests.migration.retrying import RETRYABLE_CODES

NAMES: Final = 3
"""Number of changed collections."""

REPEAT_SECONDS: Final = 0.2

MADE_BEFORE: Final = frozenset({ErrorCode.NamespaceNotFound, ErrorCode.IndexNotFound})
"""Errors of a repeated request that was executed the first time."""

IN_THE_WAY: Final = frozenset(
    {ErrorCode.MovePrimaryInProgress, ErrorCode.LockBusy, ErrorCode.LockTimeout, ErrorCode.ExceededTimeLimit}
    | {ErrorCode.ConflictingOperationInProgress, ErrorCode.BackgroundOperationInProgressForNamespace}
    | {ErrorCode.OperationFailed}  # a movePrimary whose recipient has failed several times
)
"""Errors of changes that are possible later."""


class Shapes(Workload):
    """See the module."""

    name = "shapes"
    clients = 3

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._documents: dict[str, dict[str, Document]] = {}
        self._worlds: dict[str, World] = {}
        self._stable: dict[str, Document] = {}
        self._names = [f"shape{number}" for number in range(NAMES)]

    def set_up(self) -> None:
        """Create the collection that stays as it is."""
        self.stage.create(RANGED)

    def step(self, client: StageClient) -> None:
        """Change a collection, write or read."""
        if client.number:
            self._insert(client, RANGED, self._stable)
            return
        name = client.random.choice(self._names)
        kinds = [self._write] * 6 + [self._read, self._shard, self._shard, self._refine, self._rename, self._drop]
        client.random.choice([*kinds, self._modify, self._move])(client, name)

    def check(self) -> list[str]:
        """All collections are as they should be, in the catalog too."""
        anomalies = check_documents(self.stage, RANGED, self._stable)
        for name in self._names:
            documents = self._documents.get(name, {})
            if name in self._worlds:
                anomalies += check_documents(self.stage, self._worlds[name], documents)
            found = {document["_id"]: document for document in self.stage.collections[name].find()}
            if found != documents:
                anomalies.append(f"in the end, {name} has {found} instead of {documents}")
        reply = self.stage.collections.command("checkMetadataConsistency", 1, checkIndexes=True)
        return [*anomalies, *(str(each) for each in reply["cursor"]["firstBatch"])]

    # Reads and writes

    def _write(self, client: StageClient, name: str) -> None:
        world = self._worlds.get(name, World(name, {"a": 1, "b": 1}, ()))
        self._insert(client, world, self._documents.setdefault(name, {}))

    def _insert(self, client: StageClient, world: World, documents: dict[str, Document]) -> None:
        identity = client.new_identity("shape")
        document = {"_id": identity, **World(world.name, {"a": 1, "b": 1}, ()).shard_key(client.random, identity)}
        said = client.write({"insert": world.name, "documents": [document]}, session=world.name)
        assert said == {"n": 1}, f"the insert of {document} was answered {said}"
        documents[identity] = document

    def _read(self, client: StageClient, name: str) -> None:
        read = {"find": name, "batchSize": 100_000, "readConcern": {"level": "majority"}}
        found = {document["_id"]: document for document in client.read(read)["cursor"]["firstBatch"]}
        expected = self._documents.get(name, {})
        assert found == expected, f"{name} has {found} instead of {expected}"

    # Changes

    def _shard(self, client: StageClient, name: str) -> None:
        if name in self._worlds:
            return
        world = World(name, {"a": 1}, ({"a": 500},))
        namespace = f"{self.stage.database}.{name}"
        indexes = [{"key": {"a": 1}, "name": "a_1"}, {"key": {"a": 1, "b": 1}, "name": "a_1_b_1"}]
        is_sure = self._change(client, {"createIndexes": name, "indexes": indexes})
        is_sure &= self._change(client, {"shardCollection": namespace, "key": world.key}, "admin")
        self._documents.setdefault(name, {})
        self._set_world(name, world)
        client.once({"split": namespace, "middle": world.splits[0]}, database="admin")
        self._settle(client, [name], is_sure=is_sure)

    def _refine(self, client: StageClient, name: str) -> None:
        if name not in self._worlds or "b" in self._worlds[name].key:
            return
        world = World(name, {"a": 1, "b": 1}, ())
        refine = {"refineCollectionShardKey": f"{self.stage.database}.{name}", "key": world.key}
        is_sure = self._change(client, refine, "admin")
        self._set_world(name, world)
        self._settle(client, [name], is_sure=is_sure)

    def _rename(self, client: StageClient, name: str) -> None:
        if name not in self._documents:
            return
        target = client.random.choice([each for each in self._names if each != name])
        source_of, target_of = (f"{self.stage.database}.{each}" for each in (name, target))
        rename = {"renameCollection": source_of, "to": target_of, "dropTarget": True}
        is_sure = self._change(client, rename, "admin")
        world = self._worlds.get(name)
        self._set_world(name, None)
        self._set_world(target, None if world is None else World(target, world.key, ()))
        self._documents[target] = self._documents.pop(name)
        self._settle(client, [name, target], is_sure=is_sure)

    def _drop(self, client: StageClient, name: str) -> None:
        is_sure = self._change(client, {"drop": name})
        self._documents.pop(name, None)
        self._set_world(name, None)
        self._settle(client, [name], is_sure=is_sure)

    def _modify(self, client: StageClient, name: str) -> None:
        if name in self._documents:
            level = client.random.choice(["moderate", "strict"])
            is_sure = self._change(client, {"collMod": name, "validationLevel": level})
            self._settle(client, [name], is_sure=is_sure)

    def _move(self, client: StageClient, _: str) -> None:
        """Whichever of repeated moves is the last, the database is on one of the shards."""
        self._change(client, {"movePrimary": self.stage.database, "to": client.random.choice([LOWER, UPPER])}, "admin")

    def _change(self, client: StageClient, command: Document, database: str = "") -> bool:
        """Repeat a command until it has been executed; False if it may be executed once more, at any time.

        Raises:
            AssertionError: it was refused, or is not answered in time.
        """
        deadline, unanswered = time.monotonic() + UNAVAILABLE_SECONDS_MAX, 0
        while not is_done(reply := client.once(command, database=database)):
            code = None if reply is None else reply.get("code")
            if unanswered and code in MADE_BEFORE:
                break
            is_passing = reply is None or code in RETRYABLE_CODES or code in IN_THE_WAY
            assert is_passing, f"{command} was answered {reply}"
            assert time.monotonic() < deadline, f"{command} was not executed in time: {reply}"
            unanswered += code not in IN_THE_WAY
            time.sleep(REPEAT_SECONDS)
        return not unanswered

    def _settle(self, client: StageClient, names: list[str], *, is_sure: bool) -> None:
        """If a change may be executed once more, compare the changed collections now; use other names from now on."""
        if is_sure:
            return
        for name in names:
            self._read(client, name)
            self._documents.pop(name, None)
            self._set_world(name, None)
            self._names[self._names.index(name)] = f"shape{client.new_value()}"

    def _set_world(self, name: str, world: World | None) -> None:
        """Have the chunks of a collection moved from now on, or no more."""
        self.stage.worlds[:] = [each for each in self.stage.worlds if each.name != name]
        self._worlds.pop(name, None)
        if world is not None:
            self.stage.worlds.append(world)
            self._worlds[name] = world
