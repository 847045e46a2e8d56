"""The owner of a request's session, in the forms that drivers and routers send and in others."""

from typing import Any, Final

import bson
import pytest
from bson.binary import Binary

from shardwright.daemon.users import SYSTEM, UserName, with_owner_of_session
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request

ANN: Final = UserName("ann", "admin")
ID: Final = {"id": Binary(bytes(range(16)), 4)}
OF_ANN: Final = {"uid": ANN.digest}
OF_NOBODY: Final = {"uid": bytes(32)}
ADDED: Final = bson.encode({"added": 1})[4:-1]


def owned(lsid: dict[str, Any], user: UserName, elements: bytes = b"") -> dict[str, Any]:
    """Return the request after the rewriting of its session id."""
    body = bson.encode({"find": "c", "lsid": lsid, "$db": "shop"})
    return bson.decode(with_owner_of_session(Request(OpMsg(op_msg(body, request_id=1))), user, elements).body)


@pytest.mark.parametrize("user", [ANN, SYSTEM], ids=["user", "system"])
def test_a_session_gets_its_user(user: UserName) -> None:
    assert owned(ID, user)["lsid"] == {**ID, "uid": user.digest}


@pytest.mark.parametrize(
    "lsid", [{**ID, **OF_ANN}, {**OF_ANN, **ID}, {**ID, **OF_ANN, "txnUUID": ID["id"]}], ids=["usual", "turned", "more"]
)
def test_who_may_name_a_user(lsid: dict[str, Any]) -> None:
    for user in (ANN, SYSTEM):
        assert owned(lsid, user, ADDED) == {"find": "c", "lsid": lsid, "$db": "shop", "added": 1}
    with pytest.raises(CommandError, match="Unauthorized to set user digest"):
        owned(lsid, UserName("ben", "admin"))


@pytest.mark.parametrize(
    "uid", [OF_NOBODY, {"uid": Binary(bytes(32), 0x80)}, {"uid": 5}], ids=["digest", "uuid", "number"]
)
def test_no_user_names_another(uid: dict[str, Any]) -> None:
    with pytest.raises(CommandError, match="Unauthorized to set user digest"):
        owned({**ID, **uid}, ANN)
    assert owned({**ID, **uid}, SYSTEM)["lsid"].keys() == {"id", "uid"}
