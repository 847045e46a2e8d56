"""The router's entry in ``config.mongos``, which shows administrators the routers of a cluster."""

from datetime import UTC, datetime
from typing import Final

import trio
from bson.int64 import Int64

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.router.context.options import MONGODB_VERSION
from shardwright.sharding.feature_version import router_fields
from shardwright.wire.errors import BackendError

_INTERVAL_SECONDS: Final = 10.0


class MongosRegistration:
    """Writer of the entry, at the start and every ten seconds as in mongos."""

    def __init__(self, catalog: CatalogClient, address: str) -> None:
        self._catalog = catalog
        self._address = address
        self._created = datetime.now(UTC)

    async def run(self) -> None:
        """Keep the entry current until cancelled."""
        while True:
            await self._catalog.attempt(self._ping)
            await trio.sleep(_INTERVAL_SECONDS)

    async def _ping(self) -> None:
        """Write the entry; raises a BackendError also for a write error."""
        now = datetime.now(UTC)
        entry = {
            "advisoryHostFQDNs": [],
            "created": self._created,
            "mongoVersion": MONGODB_VERSION,
            "ping": now,
            "up": Int64((now - self._created).total_seconds()),
            "waiting": True,
            **router_fields(self._created),
        }
        update = {"q": {"_id": self._address}, "u": {"$set": entry}, "upsert": True}
        reply = await self._catalog.client.command("config", {"update": "mongos", "updates": [update]})
        if reply.get("writeErrors"):
            raise BackendError("config", str(reply["writeErrors"][0].get("errmsg")), sent=True)
