"""Names of collections; the messages were read off mongod 6.0.5."""

from typing import TYPE_CHECKING, Any

import pytest
from pymongo.errors import OperationFailure

from shardwright.sharding.namespace import Namespace
from shardwright.wire.errors import CommandError
from shardwright.wire.request import check_database_name, is_valid_database_name

if TYPE_CHECKING:
    from pymongo import MongoClient


def message_of(check: object) -> str:
    assert callable(check)
    with pytest.raises(CommandError) as caught:
        check()
    assert caught.value.code == 73
    return caught.value.message


def test_parse_splits_at_the_first_dot() -> None:
    assert Namespace.parse("a.b.c") == Namespace("a", "b.c")
    assert str(Namespace.parse("a.b.c")) == "a.b.c"
    assert str(Namespace.parse("a")) == "a"


@pytest.mark.parametrize(
    ("db", "collection", "message"),
    [
        ("t", "", "Invalid namespace specified 't.'"),
        ("t", ".a", "Collection names cannot start with '.': .a"),
        ("t", "a\0b", "namespaces cannot have embedded null characters"),
        ("a.b", "c", "'.' is an invalid character in the database name: a.b"),
        ("a b", "c", "Invalid namespace specified 'a b.c'"),
        ('a"b', "c", "Invalid namespace specified 'a\"b.c'"),
        ("", "c", "Invalid namespace specified '.c'"),
        ("x" * 64, "c", f"Invalid namespace specified '{'x' * 64}.c'"),
    ],
)
def test_invalid_names(db: str, collection: str, message: str) -> None:
    assert message_of(Namespace(db, collection).check_valid) == message


@pytest.mark.parametrize("collection", ["a.", "a..b", "a b", "é", "system.x", "x" * 251])
def test_names_that_look_odd_but_are_readable(collection: str) -> None:
    Namespace("t", collection).check_readable()


def test_names_with_a_dollar() -> None:
    assert message_of(Namespace("t", "a$b").check_readable) == "Invalid collection name specified 't.a$b"
    assert message_of(Namespace("t", "a$b").check_creatable) == "Invalid collection name: a$b"
    assert message_of(Namespace("$a", "c").check_creatable) == "Invalid namespace: $a.c"


@pytest.mark.parametrize(
    "name", ["t.system.js", "t.system.users", "admin.system.roles", "config.system.sessions", "t.system.buckets.x"]
)
def test_system_collections_that_clients_write(name: str) -> None:
    Namespace.parse(name).check_writable()


@pytest.mark.parametrize(
    "name", ["t.system.roles", "t.system.x", "admin.system.sessions", "config.system.roles", "t.system.buckets."]
)
def test_system_collections_that_may_not_be(name: str) -> None:
    assert message_of(Namespace.parse(name).check_creatable) == f"Invalid system namespace: {name}"


def test_system_collections_that_only_the_server_writes() -> None:
    Namespace("t", "system.views").check_creatable()
    assert message_of(Namespace("t", "system.views").check_writable) == "cannot write to t.system.views"


def test_namespace_too_long_to_create() -> None:
    Namespace("t", "x" * 253).check_creatable()
    assert "too long" in message_of(Namespace("t", "x" * 254).check_creatable)


def test_namespace_too_long_to_shard() -> None:
    Namespace("t", "x" * 233).check_shardable()
    assert "too long" in message_of(Namespace("t", "x" * 234).check_shardable)


def test_database_names() -> None:
    assert message_of(lambda: check_database_name("a/b")) == "Invalid database name: 'a/b'"
    assert message_of(lambda: check_database_name("é" * 32)) == f"Invalid database name: '{'é' * 32}'"
    assert is_valid_database_name("é" * 31)
    assert is_valid_database_name("a*b")


@pytest.mark.parametrize(
    "name", ["a", "a.", ".a", "$a", "a$b", "a\0b", "system.x", "system.js", "system.buckets.", "x" * 251, "x" * 252]
)
def test_mongod_gives_the_same_verdict(mongod: "MongoClient[dict[str, Any]]", name: str) -> None:
    namespace = Namespace("namespaces", name)
    for check, command in (
        (namespace.check_readable, {"find": name}),
        (namespace.check_creatable, {"create": name}),
        (namespace.check_writable, {"insert": name, "documents": [{}]}),
    ):
        try:
            mongod["namespaces"].command(command)
            theirs = ""
        except OperationFailure as error:
            theirs = str((error.details or {})["errmsg"])
        try:
            check()
            ours = ""
        except CommandError as error:
            ours = error.message
        assert ours == theirs
    mongod.drop_database("namespaces")


def test_kinds() -> None:
    assert Namespace("config", "system.sessions").is_logical_sessions
    assert Namespace("config", "chunks").is_internal
    assert not Namespace("test", "chunks").is_internal
    assert Namespace("t", "$cmd").is_command
    assert str(Namespace.collectionless_aggregate("t")) == "t.$cmd.aggregate"
    assert str(Namespace.list_collections("t")) == "t.$cmd.listCollections"
    assert Namespace("t", "system.buckets.x").is_time_series_buckets
