"""CPU time of access control in the router: admission of a point read, and log-ins.

Both are measured by themselves, with a user whose description is cached, because on a busy machine the time of a find
varies by more than access control takes. They are compared with a whole point find (`bench.workloads`).
"""

import base64
import os
from collections.abc import Callable, Coroutine, Mapping
from time import process_time
from types import SimpleNamespace
from typing import Any, Final, cast

import trio
from bson.binary import UUID_SUBTYPE, Binary

from bench.plan import request
from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.daemon.users import UserName
from shardwright.router.access.access_control import AccessControl
from shardwright.router.access.login import Login
from shardwright.router.access.user_cache import AnybodySeen
from shardwright.sharding.clock import VectorClock
from shardwright.wire.message import OpMsg
from shardwright.wire.request import Request
from shardwright.wire.scram import ClientConversation, Mechanism, ScramKeys
from shardwright.wire.tls import ProcessTls
from shardwright.wire.transport.cluster_auth import ClusterAuth

_FINDS: Final = 50_000
_LOG_INS: Final = 2_000
_USER: Final = UserName("bench", "admin")
_PASSWORD: Final = b"pencil"
_MECHANISM: Final = Mechanism.SHA_256
_SALT: Final = bytes(range(28))
_CACHE_SECONDS: Final = 3600.0
_POINT_FIND: Final = {"find": "c", "filter": {"key": 1}, "limit": 1, "singleBatch": True}


def measure_access() -> dict[str, float]:
    """Measure both and print them: CPU microseconds of a find and of a log-in, and log-ins per second."""
    results = trio.run(_measure)
    results["log-ins per second"] = 1e6 / results["log-in"]
    print("\naccess control, CPU us of the router")
    print("  " + ", ".join(f"{name} {value:.2f}" for name, value in results.items()))
    return results


async def _measure() -> dict[str, float]:
    async with trio.open_nursery() as nursery:
        return await _measure_with(nursery)


async def _measure_with(nursery: trio.Nursery) -> dict[str, float]:
    auth = ClusterAuth(ProcessTls(), keys=("a" * 60,))
    access = AccessControl(_Catalog(), auth, lambda: _CACHE_SECONDS, AnybodySeen(), nursery)
    await access.users.read(_USER)
    client = cast("Any", SimpleNamespace(login=Login(user=_USER)))
    lsid = {"id": Binary(os.urandom(16), UUID_SUBTYPE)}

    def admitting(command: dict[str, Any]) -> Callable[[], Coroutine[Any, Any, object]]:
        frame = request({**command, "$db": "bench"}).data
        return lambda: access.admit(client, "find", Request(OpMsg(frame)), admin_only=False, may_write=False)

    def reading(command: dict[str, Any]) -> Callable[[], Coroutine[Any, Any, object]]:
        frame = request({**command, "$db": "bench"}).data

        async def read() -> Request:
            return Request(OpMsg(frame))

        return read

    with_session = {**_POINT_FIND, "lsid": lsid}
    return {
        "point find": await _cost(admitting(_POINT_FIND)) - await _cost(reading(_POINT_FIND)),
        "point find in a session": await _cost(admitting(with_session)) - await _cost(reading(with_session)),
        "log-in": await _cost(lambda: _log_in(access), _LOG_INS),
    }


async def _cost(step: Callable[[], Coroutine[Any, Any, object]], repeats: int = _FINDS) -> float:
    began = process_time()
    for _ in range(repeats):
        await step()
    return (process_time() - began) / repeats * 1e6


async def _log_in(access: AccessControl) -> None:
    """Run both sides of a conversation; the client has derived its keys before."""
    login = Login()
    client = ClientConversation(_USER.user, base64.b64encode(os.urandom(24)))
    first = await access.scram.start(login, _USER.db, _MECHANISM.value, client.first, skips_empty=True)
    proof = client.prove(client.read(first), _KEYS)
    answer, is_done = await access.scram.go_on(login, 1, proof, (None, None))
    client.verify(answer)
    assert is_done


_KEYS: Final = ScramKeys.derive(_MECHANISM, _PASSWORD, _SALT, _MECHANISM.iterations)


class _Catalog(CatalogClient):
    """The config servers, with one user."""

    def __init__(self) -> None:
        super().__init__(cast("Any", None), VectorClock())

    async def ask(self, question: Mapping[str, Any], db: str = "admin") -> dict[str, Any]:
        """Answer ``usersInfo``."""
        del question, db
        credentials = {
            "iterationCount": _MECHANISM.iterations,
            "salt": base64.b64encode(_SALT).decode(),
            "storedKey": base64.b64encode(_MECHANISM.hash(_KEYS.client)).decode(),
            "serverKey": base64.b64encode(_KEYS.server).decode(),
        }
        privileges = [
            {"resource": {"db": "bench", "collection": ""}, "actions": ["find", "insert", "update", "remove"]}
        ]
        described = {**_USER.to_document(), "inheritedRoles": [], "inheritedPrivileges": privileges}
        return {"users": [{**described, "credentials": {_MECHANISM.value: credentials}}]}
