"""One transaction on one shard, as a router would send it."""

import secrets
from collections.abc import Mapping
from typing import Any

from bson import Binary, Int64
from bson.binary import UUID_SUBTYPE

from tests.integration.raw_client import RawClient
from tests.shardd.router_stand_in import GOSSIP, ShardedNamespace, transaction_numbers


class RoutedTransaction:
    """Statements on a shard, of which the first begins the transaction.

    Args:
        sharded: the collection; statements have its version unless they have one.
        lsid: the session; a new one by default.
        number: the transaction number; a new one by default.
        shard: id of the shard.
        concern: the read concern.
    """

    def __init__(
        self,
        sharded: ShardedNamespace,
        lsid: Mapping[str, Any] | None = None,
        number: Int64 | None = None,
        *,
        shard: str = "sh0",
        concern: Mapping[str, Any] | None = None,
    ) -> None:
        self.lsid = dict(lsid or {"id": Binary(secrets.token_bytes(16), UUID_SUBTYPE)})
        self.number = Int64(next(transaction_numbers)) if number is None else number
        self._sharded = sharded
        self._shard = shard
        self._concern = concern
        self._has_begun = False
        self.client = RawClient(sharded.cluster.shards[shard].members[0].address)

    def close(self) -> None:
        """Close its connection; the transaction stays open."""
        self.client.socket.close()

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that all its commands have."""
        return {"lsid": self.lsid, "txnNumber": self.number, "autocommit": False}

    def run(self, statement: Mapping[str, Any]) -> dict[str, Any]:
        """Run a statement; returns the reply."""
        command = {**statement, **self.fields}
        command.setdefault("shardVersion", self._sharded.version(self._shard))
        if not self._has_begun:
            command["startTransaction"] = True
            if self._concern is not None:
                command["readConcern"] = dict(self._concern)
        self._has_begun = True
        return self.command(command)

    def command(self, command: Mapping[str, Any], *, db: str | None = None) -> dict[str, Any]:
        """Run a command unchanged; returns the reply without gossiped times."""
        reply = self.client.command(dict(command), db=db or self._sharded.db)
        return {name: value for name, value in reply.items() if name not in GOSSIP}

    def begin_again(self) -> None:
        """Have the next statement begin the transaction, with the same number."""
        self._has_begun = False

    def end(self, command: str, **more: object) -> dict[str, Any]:
        """Run a command that ends it; returns the reply."""
        return self.command({command: 1, **self.fields, **more}, db="admin")

    def commit(self, **more: object) -> dict[str, Any]:
        """Commit it; returns the reply."""
        return self.end("commitTransaction", **more)

    def abort(self) -> dict[str, Any]:
        """Abort it; returns the reply."""
        return self.end("abortTransaction")
