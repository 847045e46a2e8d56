"""Forbidding a collection's migrations while a coordinator changes it, and allowing them again whatever the outcome."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from shardwright.shardd.ddl.coordinators.allow_migrations import allow_migrations
from shardwright.shardd.ddl.coordinators.coordinator import Coordinator
from shardwright.wire.errors import CommandError


@asynccontextmanager
async def migrations_frozen(coordinator: Coordinator, uuid: UUID) -> AsyncIterator[None]:
    """Keep the chunks of a coordinator's collection where they are in the block; those under way are ended first.

    If the block fails for good (see `Coordinator.must_finish`), migrations are allowed again before the error goes on.
    If it has to be repeated, they stay forbidden until then.

    Args:
        coordinator: it has just entered a phase, and used its session for no command to the config servers yet.
        uuid: the collection's UUID.

    Raises:
        CommandError: the config servers or an owner refused, or could not be reached.
    """

    async def allow(*, is_allowed: bool) -> None:
        await allow_migrations(coordinator.context, coordinator.namespace, uuid, coordinator.session, allow=is_allowed)

    async def allow_again() -> None:
        coordinator.must_finish = True
        assert coordinator.phase is not None
        await coordinator.enter_phase(coordinator.phase)  # for another command to the config servers
        await allow(is_allowed=True)

    try:
        with coordinator.point_of_no_return():
            await allow(is_allowed=False)
        yield
    except CommandError:
        if not coordinator.must_finish:
            await allow_again()
            coordinator.must_finish = False
        raise
    await allow_again()
