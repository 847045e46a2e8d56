"""One transaction on one shard, as a router would send it."""

import secrets
from collections.abc import Mapping
from typing import Any, Final

from bson import Binary, Int64
from bson.binary import UUID_SUBTYPE
from bson.timestamp import Timestamp

from shardwright.wire.transport.client import handshake_document
from tests.integration.raw_client import RawClient, raw_client
from tests.shardd.router_stand_in import GOSSIP, ShardedNamespace, transaction_numbers

INTRODUCTION: Final = handshake_document("shardwright-shardd")["client"]


class RoutedTransaction:
    """Statements on a shard; the first one begins the transaction.

    Args:
        sharded: the collection; statements have its version unless they have one.
        lsid: the session; a new one by default.
        number: the transaction number; a new one by default.
        shard: id of the shard.
        concern: the read concern.
        member: the index of the shard's member.

    Attributes:
        client: its connection to the shard.
    """

    def __init__(
        self,
        sharded: ShardedNamespace,
        lsid: Mapping[str, Any] | None = None,
        number: Int64 | None = None,
        *,
        shard: str = "sh0",
        concern: Mapping[str, Any] | None = None,
        member: int = 0,
    ) -> None:
        self.lsid = dict(lsid or {"id": Binary(secrets.token_bytes(16), UUID_SUBTYPE)})
        self.number = Int64(next(transaction_numbers)) if number is None else number
        self.sharded = sharded
        self._shard, self._member = shard, member
        self._concern = concern
        self._has_begun = False
        self.client = RawClient(self.address)

    def close(self) -> None:
        """Close its connection; the transaction stays open."""
        self.client.socket.close()

    def reconnect(self) -> None:
        """Close its connection, and open another one."""
        self.close()
        self.client = RawClient(self.address)

    def go_on_at(self, member: int) -> None:
        """Send the following commands to another member of the shard."""
        self._member = member
        self.reconnect()

    @property
    def address(self) -> str:
        """The address of the shard."""
        return self.sharded.cluster.shards[self._shard].members[self._member].address

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that all its commands have."""
        return {"lsid": self.lsid, "txnNumber": self.number, "autocommit": False}

    def run(self, statement: Mapping[str, Any], *, has_versions: bool = True) -> dict[str, Any]:
        """Run a statement, with the version of the collection unless it has one; returns the reply."""
        command = {**statement, **self.fields}
        if has_versions:
            command.setdefault("shardVersion", self.sharded.version(self._shard))
        if not self._has_begun:
            command["startTransaction"] = True
            if self._concern is not None:
                command["readConcern"] = dict(self._concern)
        self._has_begun = True
        return self.command(command)

    def command(self, command: Mapping[str, Any], *, db: str | None = None) -> dict[str, Any]:
        """Run a command unchanged; returns the reply without gossiped times."""
        reply = self.client.command(dict(command), db=db or self.sharded.db)
        return {name: value for name, value in reply.items() if name not in GOSSIP}

    def begin_again(self) -> None:
        """Have the next statement begin the transaction, with the same number."""
        self._has_begun = False

    def end(self, command: str, **more: object) -> dict[str, Any]:
        """Run a command that ends it; returns the reply."""
        return self.command({command: 1, **self.fields, **more}, db="admin")

    def decide(self, command: Mapping[str, Any], coordinator: object = "sh1") -> dict[str, Any]:
        """Run a command as a shard that coordinates the commit would; returns the reply."""
        with raw_client(self.address) as connection:
            connection.command({"hello": 1, "client": INTRODUCTION})
            reply = connection.command({**command, **self.fields, "$coordinator": coordinator})
        return {name: value for name, value in reply.items() if name not in GOSSIP}

    def prepare(self) -> Timestamp:
        """Prepare it; returns the time."""
        reply = self.decide({"prepareTransaction": 1, "writeConcern": {"w": "majority"}})
        assert reply["ok"], reply
        time: Timestamp = reply["prepareTimestamp"]
        return time

    def commit(self, **more: object) -> dict[str, Any]:
        """Commit it; returns the reply."""
        return self.end("commitTransaction", **more)

    def abort(self) -> dict[str, Any]:
        """Abort it; returns the reply."""
        return self.end("abortTransaction")
