"""The balancer's settings in ``config.settings``, read again for each round."""

from dataclasses import dataclass, field, replace
from typing import Any

from shardwright.configd.catalog.catalog import Catalog
from shardwright.configd.term.donor_requests import UNTHROTTLED
from shardwright.sharding.catalog.settings import (
    BALANCER_ID,
    CHUNK_SIZE_ID,
    BalancerSettings,
    ChunkSizeSettings,
)
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.balancer")


@dataclass(frozen=True, slots=True)
class Configuration:
    """The documents ``balancer`` and ``chunksize`` of the settings.

    If one of them is invalid, no round may begin, and the settings keep their last values, as in MongoDB.
    """

    balancer: BalancerSettings = field(default_factory=BalancerSettings)
    chunk_size: ChunkSizeSettings = field(default_factory=ChunkSizeSettings)
    is_valid: bool = True

    async def reread(self, catalog: Catalog) -> "Configuration":
        """Read the present settings; errors as `Catalog.find`."""
        documents = await catalog.find("settings", {"_id": {"$in": [BALANCER_ID, CHUNK_SIZE_ID]}})
        found = {document["_id"]: document for document in documents}
        try:
            return Configuration(
                BalancerSettings.from_document(found.get(BALANCER_ID)),
                ChunkSizeSettings.from_document(found.get(CHUNK_SIZE_ID)),
            )
        except CommandError as error:
            logger.warning("The balancer's settings are not valid; it pauses until they are", error=str(error))
            return replace(self, is_valid=False)

    def move_options(self) -> dict[str, Any]:
        """Return the fields of a request to a donor that depend on the settings.

        ``_secondaryThrottle`` is true, or the write concern for the recipient's writes.
        """
        throttle = self.balancer.secondary_throttle
        return {
            "waitForDelete": self.balancer.wait_for_delete,
            "secondaryThrottle": bool(throttle),
            "writeConcern": dict(throttle) if throttle and not isinstance(throttle, bool) else UNTHROTTLED,
        }
