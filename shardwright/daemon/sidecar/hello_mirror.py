"""The newest hello of the local mongod, as clients of the daemon may see it, and the wait for the next.

The mirror counts its own topology versions. A change of mongod's topology is one, and so is a daemon that registered
or moved, since both change what clients see.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import trio
from bson import ObjectId

from shardwright.daemon.sidecar.hello_view import election_term, rewrite_hello, topology_of, unmapped_members
from shardwright.wire.hello import TopologyVersion


class HelloMirror:
    """What is known of the local mongod's place in its replica set.

    Args:
        mongod_address: address of the local mongod.
        sidecar_address: address of this daemon.
        extensions: fields of requests beyond MongoDB's that the daemon understands; routers learn it from hello.

    Attributes:
        hello: the newest reply of mongod, None while it can't be reached.
        version: counts the changes that clients can see.
        term: in which the mongod is primary, None when it is not.
    """

    def __init__(self, mongod_address: str, sidecar_address: str, extensions: Sequence[str] = ()) -> None:
        self.hello: Mapping[str, Any] | None = None
        self.version = TopologyVersion(ObjectId(), 0)
        self.term: int | None = None
        self._own_fields = {"extensions": list(extensions)} if extensions else {}
        self._own = {mongod_address: sidecar_address}
        self._sidecars: dict[str, str] = dict(self._own)
        self._seen: dict[str, Any] | None = None
        self._changed = trio.Event()

    @property
    def sidecars(self) -> Mapping[str, str]:
        """Address of each daemon by that of its mongod."""
        return self._sidecars

    @property
    def unmapped_members(self) -> set[str]:
        """Mongods of the set whose daemon is not known."""
        return unmapped_members(self.hello, self._sidecars) if self.hello else set()

    def observe(self, hello: Mapping[str, Any]) -> None:
        """Take a reply of mongod; one that is older than what is known (replies race) is passed over.

        So is one of another mongod process, which may be one that has ended: its reply may have waited in a socket.
        """
        known = self.hello
        if known is not None and known["topologyVersion"]["processId"] == hello["topologyVersion"]["processId"]:
            self.meet(hello)

    def meet(self, hello: Mapping[str, Any]) -> None:
        """As `observe`, for a hello that the mongod has been asked just now: it is that of the process that runs."""
        if not _is_older(hello, self.hello):
            self._know(hello)

    def lose(self) -> None:
        """Mongod can't be reached."""
        if self.hello is not None:
            self._know(None)

    def learn_sidecars(self, sidecars: Mapping[str, str]) -> None:
        """Take the registered addresses."""
        merged = {**sidecars, **self._own}
        if merged != self._sidecars:
            self._sidecars = merged
            self._publish()

    def present(self, hello: Mapping[str, Any]) -> dict[str, Any]:
        """A reply of mongod as a client gets it."""
        seen = _without_version(rewrite_hello(hello, self._sidecars))
        return {"topologyVersion": self.version.document(), **seen, **self._own_fields}

    def current_reply(self, connection_id: int) -> dict[str, Any] | None:
        """The newest hello for a client that has not asked mongod itself; None while mongod can't be reached."""
        if self.hello is None:
            return None
        reply = self.present(self.hello)
        reply["localTime"] = datetime.now(UTC)
        reply["connectionId"] = connection_id
        return reply

    async def wait_for_change(self) -> None:
        """Return when what clients see changes, or mongod is lost or found."""
        await self._changed.wait()

    def _know(self, hello: Mapping[str, Any] | None) -> None:
        self.hello = hello
        self.term = election_term(hello) if hello is not None and hello.get("isWritablePrimary") else None
        self._publish()

    def _publish(self) -> None:
        seen = None if self.hello is None else topology_of(rewrite_hello(self.hello, self._sidecars))
        if seen == self._seen:
            return
        if seen is not None:
            self.version = self.version.bumped()
        self._seen = seen
        self._changed.set()
        self._changed = trio.Event()


def _is_older(hello: Mapping[str, Any], known: Mapping[str, Any] | None) -> bool:
    if known is None:
        return False
    version, known_version = hello["topologyVersion"], known["topologyVersion"]
    return bool(version["processId"] == known_version["processId"] and version["counter"] < known_version["counter"])


def _without_version(hello: dict[str, Any]) -> dict[str, Any]:
    hello.pop("topologyVersion", None)
    return hello
