"""What every DDL coordinator is: a change of several steps that a failover does not leave half done.

A coordinator writes its document (``config.system.sharding_ddl_coordinators``) before the first step that must not be
lost, and deletes it after the last. The primary that finds the document at step-up runs the coordinator again from its
beginning; therefore every step can be repeated.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Protocol
from uuid import uuid4

from bson.binary import Binary
from bson.int64 import Int64

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.config_collection import ConfigCollection
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError

_COLLECTION: Final = "system.sharding_ddl_coordinators"

_NO_ANSWER: Final = frozenset({ErrorCode.FailedToSatisfyReadPreference, ErrorCode.WriteConcernFailed})


class LocalMigrations(Protocol):
    """The migrations of this shard, as far as changes of collections have to end them."""

    async def end_all(self, namespace: str, reason: str) -> None:
        """End the migration of a collection in either direction; nothing of it is written when this returns.

        Raises:
            CommandError: it could not be ended.
            BackendError: mongod does not answer.
        """


class Coordinator(ABC):
    """One change under way on the primary of the database's primary shard.

    Args:
        context: this shard daemon's context.
        migrations: of this shard.
        namespace: what changes; the collection is empty for a database.
        arguments: what was asked for, as it is persisted.
        phase: the phase that was persisted, None at the beginning.

    Attributes:
        operation_type: MongoDB's name for the kind of change.
        must_finish: the point of no return has been passed, or may have been: errors are met by trying again.
    """

    operation_type: ClassVar[str]

    def __init__(
        self,
        context: ShardContext,
        migrations: LocalMigrations,
        namespace: Namespace,
        arguments: Mapping[str, Any],
        phase: str | None = None,
    ) -> None:
        self.context = context
        self.migrations = migrations
        self.namespace = namespace
        self.arguments = dict(arguments)
        self.phase = phase
        # How far a former primary came is not known before it has been looked at.
        self.must_finish = phase is not None

    @property
    def id(self) -> dict[str, str]:
        """The ``_id`` of its document; one such change can be under way."""
        name = str(self.namespace) if self.namespace.collection else f"{self.namespace.db}."
        return {"namespace": name, "operationType": self.operation_type}

    @property
    def locks(self) -> list[str]:
        """The locks held from beginning to end (see `DDLLocks`), in an order that all coordinators keep."""
        return [self.namespace.db]

    @abstractmethod
    async def run(self) -> dict[str, Any]:
        """Make the change; returns the reply to the caller.

        Raises:
            CommandError: it can't be made. Unless `must_finish`, that is the end of it.
        """

    @contextmanager
    def point_of_no_return(self) -> Iterator[None]:
        """The block commits the change: from then on it has to be finished, unless it was refused for sure."""
        self.must_finish = True
        try:
            yield
        except CommandError as error:
            self.must_finish = _may_be_done(error.code)
            raise

    @property
    def session(self) -> dict[str, Any]:
        """``lsid`` and ``txnNumber`` of the one order to participants in this phase: see `participant_sessions`."""
        session: dict[str, Any] = self.arguments["session"]
        return session

    async def enter_phase(self, phase: str, **arguments: object) -> None:
        """Persist that everything before ``phase`` is done, with what the next steps need to know.

        Participants refuse from then on what was sent to them before. A second order in the same phase they would take
        for a repetition of the first: the phase is to be entered again before it.
        """
        self.phase = phase
        session = self.arguments.get("session") or {"lsid": {"id": Binary.from_uuid(uuid4())}, "txnNumber": 0}
        self.arguments |= {**arguments, "session": {**session, "txnNumber": Int64(session["txnNumber"] + 1)}}
        document = {
            "_id": self.id,
            "recoveredFromDisk": True,
            "forwardableOpMetadata": {"mayBypassWriteBlocking": False},
            "phase": phase,
            **self.arguments,
        }
        await coordinator_documents(self.context).save(document)

    async def remove_document(self) -> None:
        """The change is made, or given up: there is nothing left to resume."""
        await coordinator_documents(self.context).remove(self.id)
        self.phase = None


def coordinator_documents(context: ShardContext) -> ConfigCollection:
    """Where the documents of all coordinators are."""
    return ConfigCollection(context.mongod, _COLLECTION)


def _may_be_done(code: int) -> bool:
    """Whether what was answered with this error may have been done all the same."""
    categories = (Category.RETRYABLE, Category.NETWORK_TIMEOUT, Category.EXCEEDED_TIME_LIMIT)
    return code in _NO_ANSWER or any(has_category(code, category) for category in categories)
