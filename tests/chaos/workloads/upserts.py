"""Upserts: counters that are created by increments, with operators and with replacing pipelines."""

from typing import Final

from tests.chaos.checkers.counters import check_counters
from tests.chaos.stage import Document, Stage, StageClient
from tests.chaos.workloads.base import Workload
from tests.chaos.worlds import KEYS, RANGED, UNIQUE
from tests.migration.retrying import WriteRefusedError

KEYS_USED: Final = 40

_DUPLICATE_KEY: Final = 11000


class Upserts(Workload):
    """See the module. Two upserts of one key may each insert a document; of a unique key only one can."""

    name = "upserts"
    clients = 4

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._rounds = 0

    def set_up(self) -> None:
        """Create the collections, which are empty."""
        self.stage.create(RANGED, UNIQUE)

    def step(self, client: StageClient) -> None:
        """Increment something that may not exist yet. Clients meet at few keys, new ones from time to time."""
        done = len(self.stage.recorder.operations)
        # A new key for every dozen operations, so that several clients often create it at the same time.
        index = done // 12
        place = (index * 37) % KEYS
        world = RANGED if index % 2 else UNIQUE
        query: Document = {"a": place, "u": f"u{index}"}
        update = client.random.choice(
            [
                [{"$replaceWith": {"$mergeObjects": ["$$ROOT", query, _incremented()]}}],
                [{"$set": _incremented()}],
                {"$inc": {"value": 1}},
            ]
        )
        key = f"{world.name}/{place}/u{index}"
        if client.random.random() < 0.3:
            command: Document = {"findAndModify": world.name, "query": query, "update": update, "upsert": True}
        else:
            command = {"update": world.name, "updates": [{"q": query, "u": update, "upsert": True}]}
        with self.stage.recorder.attempt(client.number, "increment", key, 1) as attempt:
            try:
                said = client.write(command, session=world)
            except WriteRefusedError as error:
                # As in MongoDB, of two that insert the same unique key one may fail.
                attempt.is_void = f"'code': {_DUPLICATE_KEY}" in str(error)
                if not attempt.is_void:
                    raise
                return
            codes = {each["code"] for each in said.get("writeErrors", ())}
            assert codes <= {_DUPLICATE_KEY}, f"{command} was answered {said}"
            attempt.is_void = bool(codes)
            if not codes:
                attempt.answer(None)

    def check(self) -> list[str]:
        """Check that the documents of each key add up to the acknowledged writes."""
        totals: dict[str, int] = {}
        for world in (RANGED, UNIQUE):
            for document in self.stage.collections[world.name].find():
                key = f"{world.name}/{document['a']}/{document['u']}"
                totals[key] = totals.get(key, 0) + document["value"]
        return check_counters(self.stage.recorder.by_key(), totals)


def _incremented() -> Document:
    return {"value": {"$add": [{"$ifNull": ["$value", 0]}, 1]}}
