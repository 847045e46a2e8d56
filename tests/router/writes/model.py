"""A model of a server that executes write commands: few operations, with exact counts and numbers.

Documents are ``{_id, k, v}`` with ``_id`` equal to the shard key ``k``, so that uniqueness on a shard is uniqueness. It
supports inserts, updates ``{q: {k}, u: {$inc: {v}}, upsert}`` and ``{q: {}, u: {$inc: {v}}, multi: true}``, deletes
``{q: {k}, limit: 1}`` and ``{q: {}, limit: 0}``. An update or delete of the key ``POISON`` fails.
"""

from collections.abc import Callable
from typing import Any

import bson

from shardwright.wire.request import Request

POISON = 13
STALE_CONFIG = 13388


class ModelServer:
    """One server, or one shard.

    Attributes:
        documents: the stored documents, by key.
        executed: number of executions of a statement, by its statement id.
    """

    def __init__(self) -> None:
        self.documents: dict[int, dict[str, Any]] = {}
        self.executed: list[int] = []

    def execute(self, request: Request, refuses: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """The reply to a write command.

        Args:
            request: the command.
            refuses: asked before each statement whether the shard refuses it and all that follow as stale.
        """
        command = request.document
        kind = next(iter(command))
        field = {"insert": b"documents", "update": b"updates", "delete": b"deletes"}[kind]
        reply: dict[str, Any] = {"n": 0, "writeErrors": [], "upserted": [], "nModified": 0}
        ids = command.get("stmtIds")
        is_stale = False
        for index, raw in enumerate(request.documents(field)):
            is_stale = is_stale or refuses()
            if is_stale:
                reply["writeErrors"].append({"index": index, "code": STALE_CONFIG, "errmsg": "stale"})
            else:
                self.executed.append(ids[index] if ids else index)
                getattr(self, f"_{kind}")(index, bson.decode(raw), reply)
            if reply["writeErrors"] and command.get("ordered", True):
                break
        if kind != "update":
            del reply["nModified"]
        for name in ("writeErrors", "upserted"):
            if not reply[name]:
                del reply[name]
        return reply | {"ok": 1.0}

    def _insert(self, index: int, document: dict[str, Any], reply: dict[str, Any]) -> None:
        if document["k"] in self.documents:
            reply["writeErrors"].append({"index": index, "code": 11000, "errmsg": f"duplicate {document['k']}"})
            return
        self.documents[document["k"]] = document
        reply["n"] += 1

    def _update(self, index: int, statement: dict[str, Any], reply: dict[str, Any]) -> None:
        query, by = statement["q"], statement["u"]["$inc"]["v"]
        if query.get("k") == POISON:
            reply["writeErrors"].append({"index": index, "code": 2, "errmsg": "poison"})
            return
        matches = [each for each in self.documents.values() if not query or each["k"] == query["k"]]
        for each in matches:
            each["v"] += by
        reply["n"] += len(matches)
        reply["nModified"] += len(matches) if by else 0
        if not matches and statement.get("upsert"):
            self.documents[query["k"]] = {"_id": query["k"], "k": query["k"], "v": by}
            reply["n"] += 1
            reply["upserted"].append({"index": index, "_id": query["k"]})

    def _delete(self, index: int, statement: dict[str, Any], reply: dict[str, Any]) -> None:
        query = statement["q"]
        if query.get("k") == POISON:
            reply["writeErrors"].append({"index": index, "code": 2, "errmsg": "poison"})
            return
        matches = [key for key in self.documents if not query or key == query["k"]]
        for key in matches:
            del self.documents[key]
        reply["n"] += len(matches)
