"""The task that persists the results of refreshes, so that operations need not wait for that."""

import trio

from shardwright.shardd.cluster.network import as_command_error
from shardwright.shardd.metadata.metadata_store import MetadataStore
from shardwright.sharding.catalog.database_entry import DatabaseEntry
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.metadata_writer")


class MetadataWriter:
    """Persists the newest known metadata of each namespace and database; `run` runs while mongod is primary."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._pending: dict[tuple[str, str], RoutingTable | DatabaseEntry | None] = {}
        self._writing: tuple[str, str] | None = None
        self._failures: dict[tuple[str, str], CommandError] = {}
        self._work = trio.Event()
        self._progress = trio.lowlevel.ParkingLot()

    def save_collection(self, namespace: str, table: RoutingTable | None) -> None:
        """Have a collection's routing table persisted soon."""
        self._add(("collection", namespace), table)

    def save_database(self, db: str, entry: DatabaseEntry | None) -> None:
        """Have a database's entry persisted soon."""
        self._add(("database", db), entry)

    async def wait_collection_saved(self, namespace: str) -> None:
        """Return when what was last given for a collection is persisted.

        Raises:
            CommandError: it could not be written; InterruptedDueToReplStateChange, the term ended before that.
        """
        await self._wait_saved(("collection", namespace))

    async def wait_database_saved(self, db: str) -> None:
        """Return when what was last given for a database is persisted.

        Raises:
            CommandError: as for `wait_collection_saved`.
        """
        await self._wait_saved(("database", db))

    async def run(self) -> None:
        """Write until cancelled, at the end of the term.

        A failed write is not repeated: secondaries find the older metadata and refresh, and waiters get the error.
        """
        self._store.forget()
        self._pending.clear()
        self._failures.clear()
        try:
            while True:
                while self._pending:
                    self._writing = key = next(iter(self._pending))
                    value = self._pending.pop(key)
                    try:
                        await self._save(key, value)
                    except (CommandError, BackendError) as error:
                        self._failures[key] = as_command_error(error)
                        logger.warning("Could not persist metadata", kind=key[0], namespace=key[1], error=str(error))
                    self._writing = None
                    self._progress.unpark_all()
                self._work = trio.Event()
                await self._work.wait()
        finally:
            for key in (*self._pending, *filter(None, (self._writing,))):
                self._failures[key] = CommandError(
                    ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted"
                )
            self._pending.clear()
            self._writing = None
            self._progress.unpark_all()

    def _add(self, key: tuple[str, str], value: RoutingTable | DatabaseEntry | None) -> None:
        self._pending.pop(key, None)
        self._failures.pop(key, None)
        self._pending[key] = value
        self._work.set()

    async def _wait_saved(self, key: tuple[str, str]) -> None:
        while key in self._pending or self._writing == key:
            await self._progress.park()
        failure = self._failures.get(key)
        if failure is not None:
            raise failure

    async def _save(self, key: tuple[str, str], value: RoutingTable | DatabaseEntry | None) -> None:
        kind, name = key
        if kind == "database":
            assert not isinstance(value, RoutingTable)
            await self._store.save_database(name, value)
        else:
            assert not isinstance(value, DatabaseEntry)
            await self._store.save_collection(name, value)
