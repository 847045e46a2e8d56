"""A command of the config servers: its entry in the table, and one in progress on the primary (`Operation`).

`configd.service` does what all have in common (primary, write concern, deadline, errors).
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from enum import Enum, auto
from typing import Any, TypeAlias

import trio

from shardwright.configd.term.term import Term
from shardwright.daemon.sidecar.access import SidecarCommand
from shardwright.sharding.namespace import Namespace
from shardwright.wire.arguments import Arguments
from shardwright.wire.request import Request


class Operation:
    """A request with the term in which it is processed.

    Attributes:
        term: the term's resources.
        arguments: the fields of the command.
        client_address: ``ip:port`` of the sender.
        limit: the scope whose deadline is the end of the request's time limit.
    """

    def __init__(self, term: Term, request: Request, client_address: str, limit: trio.CancelScope) -> None:
        self.term = term
        self.request = request
        self.arguments = Arguments.of(request)
        self.client_address = client_address
        self.limit = limit

    @property
    def name(self) -> str:
        """The command's name."""
        return self.request.name

    @property
    def subject(self) -> str:
        """The string in the command's own field, such as a namespace or the name of a shard.

        Raises:
            CommandError: TypeMismatch.
        """
        return self.arguments.namespace(self.request.name.encode())

    @property
    def namespace(self) -> Namespace:
        """The collection named by the command's own field.

        Raises:
            CommandError: TypeMismatch, InvalidNamespace.
        """
        return Namespace.parse_collection(self.subject)

    @asynccontextmanager
    async def committing(self, *locks: str) -> AsyncIterator[None]:
        """Hold named locks of the term in the block, whose writes belong together.

        The time limit of the request applies only to the wait for the locks. If it interrupted the writes, mongod could
        still be executing one of them after the release of the locks, and the later ones would be missing, such as the
        entry in the changelog. The end of the term still interrupts them.

        Requests to shards, which may take long, do not belong into the block. Without locks, it may be in a block that
        holds them.
        """
        async with self.term.locks.hold(*locks):
            deadline, self.limit.deadline = self.limit.deadline, math.inf
            try:
                yield
            finally:
                self.limit.deadline = deadline

    async def log_changes(self, what: str, namespace: str, *details: Mapping[str, Any]) -> None:
        """Record changes in ``config.changelog``."""
        await self.term.changelog.log_changes(what, namespace, details, client_address=self.client_address)


CommandHandler: TypeAlias = Callable[[Operation], Awaitable[dict[str, Any]]]


class WriteConcernRule(Enum):
    """Whether a command requires a ``writeConcern``."""

    MAJORITY = auto()
    """It is required, with ``w: "majority"``."""
    UNSUPPORTED = auto()
    """It is not allowed."""
    ANY = auto()
    """It is allowed and makes no difference: the command has one of its own."""


@dataclass(frozen=True, slots=True)
class ConfigCommand(SidecarCommand[CommandHandler]):
    """One command; its handler returns the reply without ``ok``. Nearly all run on the admin database alone.

    Attributes:
        write_concern: its rule for write concerns.
        names_namespace: its argument is a collection or database in full; others name shards and so on, unless they
            run on the database of a collection.
    """

    _: KW_ONLY
    admin_only: bool = True
    write_concern: WriteConcernRule = WriteConcernRule.MAJORITY
    names_namespace: bool = False
