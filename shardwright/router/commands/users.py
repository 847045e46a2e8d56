"""Commands about users and roles, which the config servers store for the whole cluster, and the legacy ``getnonce``.

Without a key file clients need not authenticate, and users are only stored, as on a mongos without access control.
"""

import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Final

from shardwright.router.operations.operation import CommandHandler, Operation
from shardwright.router.processes.siblings import is_from_sibling, send_to_siblings
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import answer_in
from shardwright.sharding.bson_text import document_text
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, OBJECT, spans
from shardwright.wire.request import Request
from shardwright.wire.request_validation import refuse_repeated_fields

CHANGES: Final = {
    "createUser": "Adds a user to the database.",
    "updateUser": "Changes the password, roles, or data of a user.",
    "dropUser": "Removes a user from the database.",
    "dropAllUsersFromDatabase": "Removes all users from the database.",
    "grantRolesToUser": "Gives roles to a user.",
    "revokeRolesFromUser": "Takes roles away from a user.",
    "createRole": "Adds a role to the database.",
    "updateRole": "Changes the privileges or the inherited roles of a role.",
    "dropRole": "Removes a role from the database.",
    "dropAllRolesFromDatabase": "Removes all roles from the database.",
    "grantRolesToRole": "Lets a role inherit roles.",
    "revokeRolesFromRole": "Stops a role from inheriting roles.",
    "grantPrivilegesToRole": "Gives privileges to a role.",
    "revokePrivilegesFromRole": "Takes privileges away from a role.",
}
READS: Final = {
    "usersInfo": "The users of the database.",
    "rolesInfo": "The roles of the database.",
}

MERGING: Final = "Adds users and roles from two collections of the database admin, as when a dump is restored."

_CREATING: Final = frozenset({"createUser", "createRole"})
"""Commands after which the cluster has a user or a role."""

_NOT_PASSED_ON: Final = frozenset({"$db", "$clusterTime", "$readPreference", "lsid", "txnNumber", "writeConcern"})
_NONCE_BYTES: Final = 8

_NAMING: Final = {"usersInfo": "UserName", "rolesInfo": "RoleName"}
"""Commands whose first argument names users or roles, with MongoDB's name for that argument."""


def changing(summary: str) -> CommandHandler:
    """A handler that has the config servers change users or roles, with this line as its help."""

    async def change(operation: Operation) -> Reply:
        try:
            command_body = {**_forwarded(operation), "writeConcern": _write_concern(operation)}
            catalog, db = operation.context.catalog, operation.request.db
            done = answer_in(await catalog.command(command_body, db, is_idempotent=False))
            if operation.request.name in _CREATING:
                operation.context.log_ins.seen.note()
            return done
        finally:
            await _forget_users(operation)  # also after an error, because the change may have been made

    change.__doc__ = summary
    return change


def reading(summary: str) -> CommandHandler:
    """A handler that asks the config servers, with this line as its help."""

    async def read(operation: Operation) -> Reply:
        return answer_in(await operation.context.catalog.ask(_forwarded(operation), operation.request.db))

    read.__doc__ = summary
    return read


async def invalidate_user_cache(operation: Operation) -> Reply:
    """Forgets the users that this router has cached."""
    await _forget_users(operation)
    return {}


async def get_nonce(operation: Operation) -> Reply:
    """A random number, which clients of old needed to authenticate."""
    return {"nonce": secrets.token_hex(_NONCE_BYTES)}


async def _forget_users(operation: Operation) -> None:
    """Make all processes of this router refresh their users, so that a change takes effect at once."""
    context = operation.context
    context.log_ins.users.forget()
    if not is_from_sibling(operation.request):
        await send_to_siblings(context, "admin", {"invalidateUserCache": 1})


def _refuse_repeated(request: Request) -> None:
    """Refuse names and restrictions with a repeated field, because only one value would be passed on."""
    if request.name in _NAMING:
        _refuse_repeated_in(request, request.name.encode(), _NAMING[request.name])
    _refuse_repeated_in(request, b"roles", "RoleName")
    _refuse_repeated_in(request, b"grantedRoles", "RoleName")
    for start in _documents_in(request, b"authenticationRestrictions"):
        refuse_repeated_fields(request.body, start, f"{request.name}.authenticationRestrictions")


def _refuse_repeated_in(request: Request, argument: bytes, kind: str) -> None:
    for start in _documents_in(request, argument):
        names = [name.decode(errors="replace") for name, _ in spans(request.body, start)]
        repeated = next((name for position, name in enumerate(names) if name in names[:position]), None)
        if repeated is not None and set(names) <= {"user", "role", "db"}:
            raise CommandError(ErrorCode.BadValue, f"{kind} has more than one field named: {repeated}")


def _documents_in(request: Request, argument: bytes) -> Iterator[int]:
    """Yield the start of each document in an argument that is a document or an array."""
    span = request.fields.get(argument)
    if span is None or span[0] not in (OBJECT, ARRAY):
        return
    for kind, _, start, _ in [span] if span[0] == OBJECT else [each for _, each in spans(request.body, span[2])]:
        if kind == OBJECT:
            yield start


def _forwarded(operation: Operation) -> dict[str, Any]:
    """Return the command for the config servers, on the same database."""
    request = operation.request
    _refuse_repeated(request)
    return {name: value for name, value in request.document.items() if name not in _NOT_PASSED_ON}


def _write_concern(operation: Operation) -> dict[str, Any]:
    """Return majority write concern with the client's ``wtimeout``; refuse a ``w`` other than 1 and majority."""
    given = operation.argument(b"writeConcern") or {}
    if not isinstance(given, Mapping) or given.get("w", 1) not in (1, "majority"):
        raw = operation.request.raw_object(b"writeConcern")
        raise CommandError(
            ErrorCode.InvalidOptions,
            "Invalid replication write concern. User management write operations may only use w:1 or w:'majority', "
            f"got: {'' if raw is None else document_text(raw)}",
        )
    return {"w": "majority", "wtimeout": given.get("wtimeout", 0)}
