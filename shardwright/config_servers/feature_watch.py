"""Reading the cluster's feature version at regular intervals."""

from collections.abc import Callable
from typing import Final

import trio

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.sharding.catalog.reads import read_feature_version

INTERVAL_SECONDS: Final = 30.0
"""Time for which a daemon may use the previous version after an upgrade has finished."""

_RETRY_SECONDS: Final = 5.0
"""Pause after a failure while the version is unknown."""


async def follow_feature_version(catalog: CatalogClient, adopt: Callable[[int], None]) -> None:
    """Read the version at each interval until cancelled, and call ``adopt``, which may raise to end the daemon."""
    is_known = False
    while True:
        version = await catalog.attempt(lambda: catalog.read(read_feature_version()))
        if version is not None:
            is_known = True
            adopt(version)
        await trio.sleep(INTERVAL_SECONDS if is_known else _RETRY_SECONDS)
