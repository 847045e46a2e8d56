"""The mapping of mongods to daemons in the replicated collection ``config.sidecars`` of each set.

Documents are ``{_id: "<mongod host:port>", sidecar: "<daemon host:port>"}``. Each daemon writes its own, through the
primary mongod of its set, and reads the others from its own mongod.
"""

from functools import partial
from typing import Any, Final

import trio

from shardwright.daemon.sidecar.hello import HelloMirror
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.wire.errors import BackendError, CommandError, check_writes
from shardwright.wire.logger import get_logger

logger = get_logger("daemon.sidecar.registration")

COLLECTION: Final = "sidecars"

# A secondary is not notified when a document has been replicated, so the collection is polled: frequently while the
# daemon of a member is unknown, otherwise occasionally, in case a daemon has moved to another address.
_INCOMPLETE_SECONDS: Final = 0.2
_COMPLETE_SECONDS: Final = 10.0


class Registration:
    """The upkeep of this daemon's document and of the mirror's addresses."""

    def __init__(self, mongod: LocalMongod, mirror: HelloMirror, address: str) -> None:
        self._mongod = mongod
        self._mirror = mirror
        self._address = address

    async def run(self) -> None:
        """Register and follow the others until cancelled."""
        while True:
            is_complete = False
            if self._mirror.hello is not None:
                try:
                    is_complete = await self._synchronise()
                except (BackendError, CommandError) as error:
                    # Before the set is initiated and during elections; the next hello triggers another attempt.
                    logger.debug("Could not read or write the registrations", error=str(error))
            with trio.move_on_after(_COMPLETE_SECONDS if is_complete else _INCOMPLETE_SECONDS):
                await self._mirror.wait_for_change()

    async def _synchronise(self) -> bool:
        """Read, and if necessary write, the collection; return whether the daemons of all members are registered."""
        registered = await self._read()
        self._mirror.learn_sidecars(registered)
        if registered.get(self._mongod.address) != self._address:
            await self._register()
            return False
        return not self._mirror.unmapped_members

    async def _read(self) -> dict[str, str]:
        reply = await self._mongod.command(
            "config",
            {"find": COLLECTION, "$readPreference": {"mode": "nearest"}, "batchSize": 1000, "singleBatch": True},
        )
        return {document["_id"]: document["sidecar"] for document in reply["cursor"]["firstBatch"]}

    async def _register(self) -> None:
        hello: Any = self._mirror.hello
        primary = hello and hello.get("primary")
        if primary is None:
            return
        update = {"q": {"_id": self._mongod.address}, "u": {"$set": {"sidecar": self._address}}, "upsert": True}
        pool = self._mongod.pool_of_member(primary)
        command = {"update": COLLECTION, "updates": [update]}
        reply = await self._mirror.while_primary(primary, partial(pool.command, "config", command))
        check_writes(reply)
        logger.info("Registered with the replica set", mongod=self._mongod.address, sidecar=self._address)
