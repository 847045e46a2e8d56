"""The view of security and health: users, certificates, parameters that differ, consistency, a support bundle."""

import asyncio
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from bson import json_util

from shardwright.console.metrics import Sampler
from shardwright.console.overview import overview
from shardwright.console.reader import Document, Reader, Refused, maybe, of_routers, partly
from shardwright.console.settings import Settings

_SECONDS: Final = 15.0
_LISTED_MAX: Final = 500
_AT_ONCE: Final = 16
_CHECK_SECONDS_MAX: Final = 20.0
_PARAMETERS_OF_EACH: Final = frozenset({"ok", "operationTime", "$clusterTime"})
_SECRET_WORDS: Final = ("password", "key", "secret", "credential", "filter", "command", "query", "shape")


async def security(reader: Reader, sampler: Sampler, settings: Settings) -> dict[str, Any]:
    """Return users, roles, certificates, and parameters of the routers that differ."""

    async def read() -> dict[str, Any]:
        refusals: list[str] = []
        (users, roles), whole, differing = await asyncio.gather(
            _users_and_roles(reader, refusals),
            overview(reader, sampler, settings),
            _differing(reader, refusals),
        )
        members = [member for each in (whole["configServers"], *whole["shards"]) for member in each["members"]]
        return {
            "users": [
                {
                    "user": each["user"],
                    "db": each["db"],
                    "roles": [f"{role['role']}@{role['db']}" for role in each.get("roles", ())],
                    "mechanisms": each.get("mechanisms", []),
                }
                for each in users[:_LISTED_MAX]
            ],
            "roles": [
                {
                    "role": each["role"],
                    "db": each["db"],
                    "inherits": [f"{role['role']}@{role['db']}" for role in each.get("roles", ())],
                }
                for each in roles[:_LISTED_MAX]
            ],
            "certificates": [
                {"address": each["address"], "expires": each["certificateExpires"]}
                for each in (*whole["routers"], *members)
                if each["certificateExpires"] is not None
            ],
            "hasMetrics": bool(settings.targets),
            "processes": [
                {
                    "address": each["address"],
                    "version": each["daemonVersion"],
                    "startedAt": each["startedAt"],
                    "memoryBytes": each["memoryBytes"],
                    "connections": each["connections"],
                }
                for each in (*whole["routers"], *members)
            ],
            "differing": differing,
            "refusals": refusals,
        }

    return await reader.kept("security", _SECONDS, read)


async def _users_and_roles(reader: Reader, refusals: list[str]) -> tuple[list[Document], list[Document]]:
    nothing: Document = {}
    every_user = {"usersInfo": {"forAllDBs": True}}
    found = await partly(reader, "users", 0.0, lambda: reader.command(every_user), nothing, refusals)
    users: list[Document] = found.get("users", [])
    none: list[Document] = []
    return users, await partly(reader, "roles", 0.0, lambda: user_defined_roles(reader, users), none, refusals)


async def user_defined_roles(reader: Reader, users: Iterable[Document]) -> list[Document]:
    """Return the roles of all databases that exist, have users, or have roles of users.

    ``rolesInfo`` reads one database, and a database with roles need not have collections.

    Raises:
        Refused: the user may not read roles.
    """
    databases = {"admin"}
    for user in users:
        databases |= {user["db"], *(role["db"] for role in user.get("roles", ()))}
    listed: Document = await maybe(reader.command({"listDatabases": 1, "nameOnly": True}), {}, [])
    databases |= {each["name"] for each in listed.get("databases", ())}
    found: list[Document] = []
    names = sorted(databases)[:_LISTED_MAX]
    for at in range(0, len(names), _AT_ONCE):
        several = names[at : at + _AT_ONCE]
        for reply in await asyncio.gather(*(reader.command({"rolesInfo": 1}, database) for database in several)):
            found += reply["roles"]
    return found


async def _differing(reader: Reader, refusals: list[str]) -> list[Document]:
    """Return parameters with different values on routers: ``{name, values: {router: value}}``."""
    replies = await of_routers(reader, "parameters", 0.0, {"getParameter": "*"}, refusals)
    found = {
        address: {name: value for name, value in reply.items() if name not in _PARAMETERS_OF_EACH}
        for address, reply in replies.items()
    }
    names = sorted({name for values in found.values() for name in values})
    return [
        {"name": name, "values": {address: values.get(name) for address, values in found.items()}}
        for name in names
        if len({json_util.dumps(values.get(name), sort_keys=True) for values in found.values()}) > 1
    ]


async def consistency(reader: Reader) -> dict[str, Any]:
    """Run ``checkMetadataConsistency`` on the whole cluster."""
    reply = await reader.command({"checkMetadataConsistency": 1}, seconds_max=_CHECK_SECONDS_MAX)
    cursor = reply["cursor"]
    return {
        "at": datetime.now(UTC),
        "inconsistencies": cursor["firstBatch"],
        "isComplete": cursor["id"] == 0,
    }


async def support_bundle(reader: Reader, sampler: Sampler, settings: Settings) -> bytes:
    """Return versions, states, options and logs as a compressed archive, without clients' data and secrets.

    Parts that the user may not read are omitted, with the reason in ``left-out.json``.
    """
    left_out: dict[str, str] = {}
    files: dict[str, Any] = {}

    async def add(name: str, reading: Any) -> None:  # noqa: ANN401 - any coroutine
        try:
            files[name] = await reading
        except Refused as refused:
            left_out[name] = str(refused)

    whole = await overview(reader, sampler, settings)
    files["overview.json"] = whole
    await add("server-status.json", reader.command({"serverStatus": 1}))
    await add("options.json", reader.command({"getCmdLineOpts": 1}))
    await add("parameters.json", reader.command({"getParameter": "*"}))
    await add("pools.json", reader.command({"connPoolStats": 1}))
    await add("consistency.json", reader.command({"checkMetadataConsistency": 1}))
    await add("balancer.json", reader.command({"balancerStatus": 1}))
    try:
        log = await reader.command({"getLog": "global"})
        files["router-log.json"] = [line for each in log["log"] if (line := _safe_line(each)) is not None]
    except Refused as refused:
        left_out["router-log.json"] = str(refused)
    files["left-out.json"] = left_out
    return _archive({name: without_secrets(value) for name, value in files.items()})


def _safe_line(line: str) -> Mapping[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def without_secrets(value: Any) -> Any:  # noqa: ANN401 - any document
    """Return a document without fields whose names suggest secrets or clients' data."""
    if isinstance(value, Mapping):
        return {
            name: "(left out)" if _is_secret(name) else without_secrets(each)
            for name, each in value.items()
            if name not in ("min", "max", "$clusterTime", "signature")
        }
    return [without_secrets(each) for each in value] if isinstance(value, list | tuple) else value


def _is_secret(name: str) -> bool:
    lower = name.lower()
    return any(word in lower for word in _SECRET_WORDS) and not lower.endswith("file")


def _archive(files: Mapping[str, Any]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name, value in files.items():
            data = json_util.dumps(value, json_options=json_util.RELAXED_JSON_OPTIONS, indent=1).encode()
            entry = tarfile.TarInfo(f"shardwright-support/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return target.getvalue()
