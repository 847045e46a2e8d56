"""The feature version that a shard daemon follows, see `sharding.feature_version`.

The shard's own record is read first. It reveals unfinished work of a newer release even when no config server answers.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from shardwright.config_servers.feature_watch import follow_feature_version
from shardwright.daemon.backoff import Backoff, until_done
from shardwright.daemon.unfit_cluster import check_fitness
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.sharding.feature_version import OLDEST, RECORDED_BY_SHARDS, query, recording, refusal, version_of
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.feature_version")


class FeatureVersion:
    """The feature version recorded on this shard.

    Attributes:
        recorded: the version. The daemon may use features of this version and earlier ones.
    """

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self.recorded = OLDEST

    async def run(self) -> None:
        """Follow the cluster's version once this is a shard, until cancelled or the version is unsupported.

        An unsupported version raises UnfitClusterError, here and in `check_record`.
        """
        await self._until_done(self._read_record)
        await self._until_done(self._context.wait_identified)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow_feature_version, await self._context.catalog(), partial(self._adopt, nursery))

    async def check_record(self, _term: int) -> None:
        """Read the shard's own record before the work of a term begins."""
        await self._read_record()

    async def _read_record(self) -> None:
        question = {**query(), "$readPreference": {"mode": "nearest"}}
        found = (await self._context.mongod.command("admin", question))["cursor"]["firstBatch"]
        self.recorded = version_of(found[0] if found else None)
        check_fitness(refusal(self.recorded))

    def _adopt(self, nursery: trio.Nursery, version: int) -> None:
        check_fitness(refusal(version))
        if version >= RECORDED_BY_SHARDS and version > self.recorded and self._context.is_primary:
            nursery.start_soon(self._record, version)

    async def _record(self, version: int) -> None:
        try:
            await self._context.mongod.write("admin", recording(version))
        except (BackendError, CommandError) as error:
            # The next read of the version repeats this if the shard daemon is still primary.
            logger.warning("Could not record the feature version", feature_version=version, error=str(error))
            return
        self.recorded = version
        logger.info("Recorded the feature version of the cluster", feature_version=version)

    async def _until_done(self, step: Callable[[], Awaitable[object]]) -> None:
        await until_done(step, Backoff(first_seconds=0.1, seconds_max=1.0), _note_failure)


def _note_failure(error: BackendError | CommandError, retry_seconds: float) -> None:
    logger.debug("Could not read the feature version", error=str(error), retry_seconds=round(retry_seconds, 3))
