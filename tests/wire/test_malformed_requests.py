"""Messages that are not commands: refused with a mongod's errors, after which the connection is still usable."""

from collections.abc import Callable
from struct import pack, unpack_from
from typing import Any

import bson
import pytest
from bson.code import Code
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.objectid import ObjectId

from shardwright.wire.errors import CommandError, MalformedRequestError
from shardwright.wire.message import CHECKSUM_PRESENT, OpMsg
from shardwright.wire.request import Request
from tests.wire.raw_connection import RawConnection

Connect = Callable[[], RawConnection]

PING = bson.encode({"ping": 1, "$db": "admin"})
INSERT = bson.encode({"insert": "c", "$db": "malformed"})
DOCUMENT = bson.encode({"a": 1})


def frame(sections: bytes, flags: int = 0) -> bytes:
    return pack("<iiii", 20 + len(sections), 9, 0, 2013) + pack("<I", flags) + sections


def sequence(name: bytes, data: bytes, length: int | None = None) -> bytes:
    content = name + b"\0" + data
    return b"\1" + pack("<i", 4 + len(content) if length is None else length) + content


def repeated(*elements: dict[str, Any]) -> bytes:
    """A document with the elements of all these, whose names may be the same."""
    content = b"".join([bson.encode(element)[4:-1] for element in elements])
    return pack("<i", len(content) + 5) + content + b"\0"


MALFORMED = {
    "no sections": frame(b""),
    "no body": frame(sequence(b"documents", DOCUMENT)),
    "two bodies": frame(b"\0" + PING + b"\0" + PING),
    "two bodies, the second truncated": frame(b"\0" + PING + b"\0ab"),
    "a security token": frame(b"\0" + PING + b"\2" + bson.encode({})),
    "unknown kind": frame(b"\0" + PING + b"\3" + bson.encode({})),
    "unknown kind first": frame(b"\xff" + PING),
    "body past the end": frame(b"\0" + pack("<i", len(PING) + 10) + PING[4:]),
    "body of length 3": frame(b"\0" + pack("<i", 3) + PING[4:]),
    "body of two bytes": frame(b"\0ab"),
    "no room for a checksum": frame(b"", flags=CHECKSUM_PRESENT),
    "two sequences of a name": frame(b"\0" + INSERT + sequence(b"a", DOCUMENT) + sequence(b"a", DOCUMENT)),
    "two sequences and no body": frame(sequence(b"a", DOCUMENT) + sequence(b"a", DOCUMENT)),
    "sequence of a field of the body": frame(
        b"\0" + bson.encode({"insert": "c", "documents": [{}], "$db": "malformed"}) + sequence(b"documents", DOCUMENT)
    ),
    "sequence of length 0": frame(b"\0" + INSERT + sequence(b"documents", DOCUMENT, 0)),
    "sequence of length 3": frame(b"\0" + INSERT + sequence(b"documents", DOCUMENT, 3)),
    "sequence of a negative length": frame(b"\0" + INSERT + sequence(b"documents", DOCUMENT, -5)),
    "sequence past the end": frame(b"\0" + INSERT + sequence(b"documents", DOCUMENT, 900)),
    "sequence of two bytes": frame(b"\0" + INSERT + b"\1ab"),
    "sequence without a name": frame(b"\0" + INSERT + b"\1" + pack("<i", 7) + b"abc"),
    "document past the end": frame(b"\0" + INSERT + sequence(b"documents", pack("<i", 100) + DOCUMENT[4:])),
    "document of length 3": frame(b"\0" + INSERT + sequence(b"documents", pack("<i", 3) + DOCUMENT[4:])),
    "document of three bytes": frame(b"\0" + INSERT + sequence(b"documents", b"abc")),
    "documents and a byte": frame(b"\0" + INSERT + sequence(b"documents", DOCUMENT + b"\5")),
}
WELL_FORMED = {
    "sequence before the body": frame(sequence(b"documents", DOCUMENT) + b"\0" + INSERT),
    "sequence of a name in a value": frame(
        b"\0" + bson.encode({"insert": "documents", "$db": "malformed"}) + sequence(b"documents", DOCUMENT)
    ),
}


def our_error(data: bytes) -> CommandError | None:
    try:
        request = Request(OpMsg(data))
        for each in request.message.sequences:
            assert each.documents
    except MalformedRequestError as malformed:
        return malformed.error
    except CommandError as error:
        return error
    return None


def assert_refused_alike(connect: Connect, data: bytes) -> None:
    connection = connect()
    reply = connection.exchange(data)
    length = unpack_from("<i", reply, 21)[0]  # a checksum may follow
    theirs = bson.decode(reply[21 : 21 + length])
    ours = our_error(data)
    assert ours is not None
    assert ours.reply() == {name: theirs.get(name) for name in ours.reply()}
    assert connection.command({"ping": 1})["ok"] == 1


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_sections_are_refused_as_by_a_mongod(connect: Connect, data: bytes) -> None:
    assert_refused_alike(connect, data)


@pytest.mark.parametrize("data", WELL_FORMED.values(), ids=WELL_FORMED.keys())
def test_unusual_sections_are_accepted(data: bytes) -> None:
    assert our_error(data) is None


DATABASES: list[Any] = [
    *("", ".", "a.b", "a/b", "a\\b", "a b", 'a"b', "a" * 64, "ä" * 32, "a\0b", ".\0"),
    *(5, 1.5, Int64(5), None, True, {}, [], b"x", ObjectId("0" * 24), Code("x"), MaxKey()),
]


@pytest.mark.parametrize("db", DATABASES, ids=ascii)
@pytest.mark.parametrize("name", ["ping", "hello", "find"])
def test_database_names_are_refused_as_by_a_mongod(connect: Connect, name: str, db: object) -> None:
    assert_refused_alike(connect, frame(b"\0" + bson.encode({name: "c", "$db": db})))


@pytest.mark.parametrize("db", ["$external", "a" * 63, "ä" * 31, "a*b", "a$b", "a:|<>?", "\1\n"])
def test_unusual_database_names_are_accepted(connect: Connect, db: str) -> None:
    assert our_error(frame(b"\0" + bson.encode({"ping": 1, "$db": db}))) is None
    assert connect().command({"ping": 1}, db=db)["ok"] == 1


REPEATED = {
    "the command": repeated({"ping": 1}, {"ping": 1}, {"$db": "admin"}),
    "an argument": repeated({"find": "c"}, {"filter": {}}, {"filter": {"a": 1}}, {"$db": "admin"}),
    "a generic argument": repeated({"ping": 1}, {"comment": 1}, {"comment": 1}, {"$db": "admin"}),
    "an unknown argument": repeated({"hello": 1}, {"zz": 1}, {"zz": "x"}, {"$db": "admin"}),
    "the database": repeated({"ping": 1}, {"$db": "admin"}, {"$db": "admin"}),
    "two": repeated({"ping": 1}, {"a": 1}, {"b": 1}, {"b": 1}, {"a": 1}, {"$db": "admin"}),
    "a field without a value": repeated({"ping": None}, {"x": None}, {"x": None}, {"$db": "admin"}),
    "no command": repeated({}),
}


@pytest.mark.parametrize("body", REPEATED.values(), ids=REPEATED.keys())
def test_repeated_fields_are_refused_as_by_a_mongod(connect: Connect, body: bytes) -> None:
    assert_refused_alike(connect, frame(b"\0" + body))
    assert_refused_alike(connect, frame(b"\0" + body))  # again, now that the process may know the layout
