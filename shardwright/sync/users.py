"""Replication of users and roles, with their credentials, in the way of mongodump and mongorestore."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shardwright.sync.commands import run_command
from shardwright.sync.ends import MAJORITY, VALUES, End, repeated
from shardwright.sync.replication import Filter
from shardwright.sync.store import Store
from shardwright.wire.logger import get_logger

TEMPORARY: Final = {"users": "tempusers", "roles": "temproles"}
"""Temporary collections of ``admin`` that a merge reads, with mongorestore's names."""

_OF_ALL: Final = frozenset({"admin", "$external"})
"""Databases that have users of all databases."""

_NOT_FOUND: Final = frozenset({11, 31})
"""UserNotFound, RoleNotFound."""

_log = get_logger("sync.users")

Accounts = Mapping[str, Mapping[str, Any]]
"""The documents of ``admin.system.users`` or ``admin.system.roles``, by ``_id``."""


@dataclass(frozen=True)
class AccountChanges:
    """The writes that give the target the users, or the roles, of the source.

    Attributes:
        drops: users or roles that the source no longer has.
        carried: the ``_id`` values of everything that the target then has from the source.
        kept: the ``_id`` values of users or roles that the target had before, which stay unchanged.
    """

    new: Sequence[Mapping[str, Any]]
    changed: Sequence[Mapping[str, Any]]
    drops: Sequence[Mapping[str, Any]]
    carried: frozenset[str]
    kept: frozenset[str]


def changes(source: Accounts, target: Accounts, carried: Iterable[str], chosen: Filter) -> AccountChanges:
    """Compare the users or roles of both ends. Pure.

    Args:
        carried: the ``_id`` values written by earlier comparisons.
        chosen: the databases that are replicated; users of ``admin`` and ``$external`` always are.
    """
    before = frozenset(carried)
    wanted = {name: each for name, each in source.items() if each["db"] in _OF_ALL or chosen.may_have(each["db"])}
    kept = (wanted.keys() & target.keys()) - before
    new = [each for name, each in wanted.items() if name not in target]
    changed = [
        each
        for name, each in wanted.items()
        if name in target and name not in kept and _plain(target[name]) != _plain(each)
    ]
    drops = [target[name] for name in sorted(before - wanted.keys()) if name in target]
    return AccountChanges(new, changed, drops, frozenset(wanted.keys() - kept), frozenset(kept))


class Users:
    """Replicates users and roles.

    Attributes:
        carried: the ``_id`` values of accounts that the target has from the source, by kind.
        kept: the ``_id`` values of accounts that the target had before, by kind.
    """

    def __init__(
        self, source: End, target: End, chosen: Filter, carried: Mapping[str, Iterable[str]], store: Store
    ) -> None:
        self.carried = {kind: frozenset(carried.get(kind, ())) for kind in TEMPORARY}
        self.kept: dict[str, frozenset[str]] = {}
        self._source, self._target, self._chosen, self._store = source, target, chosen, store
        self._has_matched = False

    async def compared(self) -> dict[str, AccountChanges]:
        """Return the differences of both ends, by kind."""
        found = {}
        for kind in TEMPORARY:
            ours, theirs = [await repeated(lambda end=end, kind=kind: _read(end, kind)) for end in self._ends]  # type: ignore[misc]
            found[kind] = changes(ours, theirs, self.carried[kind], self._chosen)
        self.kept = {kind: each.kept for kind, each in found.items()}
        return found

    async def match(self, save: Callable[[dict[str, list[str]]], Awaitable[object]]) -> None:
        """Give the target the users and roles of the source.

        Args:
            save: saves the ``_id`` values of the carried accounts. It is called before the writes, so that they are
                repeated after an interruption.
        """
        if not self._has_matched:
            # A former process may have stalled just before its merge. Then it merges nothing, because its temporary
            # collections are gone. A killed one may have left them, with credentials.
            await repeated(self._drop_temporary)
            self._has_matched = True
        found = await self.compared()
        carried = {kind: each.carried for kind, each in found.items()}
        if carried != self.carried:
            await save({kind: sorted(each) for kind, each in carried.items()})
        self.carried = carried
        for each in found["users"].changed:
            # A merge changes no existing user, and no other command takes credentials.
            await self._run(each["db"], {"dropUser": each["user"]})
        for each in found["roles"].changed:
            fields = ("privileges", "roles", "authenticationRestrictions")
            await self._run(
                each["db"], {"updateRole": each["role"], **{name: each[name] for name in fields if name in each}}
            )
        writes = {"users": [*found["users"].new, *found["users"].changed], "roles": found["roles"].new}
        if any(writes.values()):
            await repeated(lambda: self._merge(writes))
        for kind, command in (("users", "dropUser"), ("roles", "dropRole")):
            for each in found[kind].drops:
                await self._run(each["db"], {command: each["user" if kind == "users" else "role"]})

    @property
    def _ends(self) -> tuple[End, End]:
        return self._source, self._target

    async def _merge(self, writes: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        admin = self._target.client.get_database("admin", codec_options=VALUES, write_concern=MAJORITY)
        command: dict[str, Any] = {"_mergeAuthzCollections": 1, "db": "", "drop": False}
        await self._store.check_lease()
        try:
            for kind, documents in writes.items():
                await admin.drop_collection(TEMPORARY[kind])
                if documents:
                    await admin.get_collection(TEMPORARY[kind]).insert_many([dict(each) for each in documents])
                name = f"temp{kind.capitalize()}Collection"
                command[name] = f"admin.{TEMPORARY[kind]}" if documents else ""
            await self._store.check_lease()
            await self._target.command("admin", {**command, "writeConcern": {"w": "majority"}})
        finally:
            await self._drop_temporary()
        _log.info("Users and roles were carried", **{kind: len(documents) for kind, documents in writes.items()})

    async def _drop_temporary(self) -> None:
        admin = self._target.client.get_database("admin", write_concern=MAJORITY)
        for each in TEMPORARY.values():
            await admin.drop_collection(each)

    async def _run(self, database: str, command: Mapping[str, Any]) -> None:
        await run_command(self._store, self._target, database, command, *_NOT_FOUND)


def _plain(account: Mapping[str, Any]) -> dict[str, Any]:
    """Return a user without the id that each deployment gives it."""
    return {name: value for name, value in account.items() if name != "userId"}


async def _read(end: End, kind: str) -> dict[str, Mapping[str, Any]]:
    collection = end.client.get_database("admin", codec_options=VALUES).get_collection(f"system.{kind}")
    return {str(each["_id"]): each for each in await collection.find().to_list()}
