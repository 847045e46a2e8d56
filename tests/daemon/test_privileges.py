"""Privileges that include a resource."""

from typing import Any

import pytest

from shardwright.daemon.users import ANY, CLUSTER, Privileges, Resource

COLLECTION = Resource("d", "c")


@pytest.mark.parametrize(
    ("privilege", "included", "others"),
    [
        ({"anyResource": True}, [CLUSTER, COLLECTION, Resource("local", "x"), Resource("d"), ANY], []),
        ({"cluster": True}, [CLUSTER], [COLLECTION, Resource("d"), ANY]),
        (
            {"db": "d", "collection": ""},
            [COLLECTION, Resource("d")],
            [Resource("d", "system.js"), Resource("e"), Resource("d", "system.buckets.c"), CLUSTER, ANY],
        ),
        ({"db": "d", "collection": "c"}, [COLLECTION], [Resource("d"), Resource("d", "c2"), Resource("e", "c")]),
        ({"db": "", "collection": "c"}, [COLLECTION, Resource("local", "c")], [Resource("d"), Resource("d", "x")]),
        (
            {"db": "", "collection": ""},
            [COLLECTION, Resource("d"), ANY],
            [Resource("config", "c"), Resource("local"), Resource("d", "system.js"), CLUSTER],
        ),
        ({"db": "local", "collection": ""}, [Resource("local", "x")], [Resource("local", "replset.minvalid")]),
        ({"db": "d", "system_buckets": "c"}, [Resource("d", "system.buckets.c")], [COLLECTION, Resource("d")]),
        ({"system_buckets": ""}, [Resource("d", "system.buckets.c")], [COLLECTION, Resource("d", "system.js")]),
    ],
)
def test_a_privilege_includes(privilege: dict[str, Any], included: list[Resource], others: list[Resource]) -> None:
    held = Privileges.from_documents([{"resource": privilege, "actions": ["find"]}])
    assert [each for each in included if not held.allow("find", each)] == []
    assert [each for each in others if held.allow("find", each)] == []
    assert not any(held.allow("insert", each) for each in included)


def test_privileges_add_up() -> None:
    resource = {"db": "d", "collection": "c"}
    given = [{"resource": resource, "actions": ["find"]}, {"resource": resource, "actions": ["insert"]}]
    held = Privileges.from_documents([*given, {"resource": {"cluster": True}, "actions": ["anyAction"]}])
    assert held.allow("find", COLLECTION)
    assert held.allow("insert", COLLECTION)
    assert held.allow("shutdown", CLUSTER)
    assert not held.allow("shutdown", COLLECTION)
