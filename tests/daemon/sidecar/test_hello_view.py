"""A mongod's hello with the addresses of the daemons."""

from bson import ObjectId

from shardwright.daemon.sidecar.hello_view import election_term, rewrite_hello, topology_of, unmapped_members

SIDECARS = {"m0:1": "d0:1", "m1:1": "d1:1"}
HELLO = {
    "topologyVersion": {"processId": ObjectId(), "counter": 6},
    "hosts": ["m0:1", "m1:1", "m2:1"],
    "arbiters": ["m3:1"],
    "setName": "s",
    "isWritablePrimary": True,
    "primary": "m0:1",
    "me": "m0:1",
    "localTime": 7,
    "ok": 1.0,
}


def test_addresses_are_replaced_by_those_of_daemons() -> None:
    seen = rewrite_hello(HELLO, SIDECARS)
    assert seen["hosts"] == ["d0:1", "d1:1"]
    assert (seen["primary"], seen["me"]) == ("d0:1", "d0:1")
    assert seen["setName"] == "s"


def test_a_member_without_a_daemon_is_omitted_everywhere() -> None:
    seen = rewrite_hello({**HELLO, "primary": "m2:1"}, SIDECARS)
    assert "primary" not in seen
    assert "arbiters" not in seen
    assert unmapped_members(HELLO, SIDECARS) == {"m2:1", "m3:1"}


def test_topology_is_what_clients_wait_for() -> None:
    assert topology_of(HELLO) == topology_of({**HELLO, "localTime": 8, "lastWrite": {}, "connectionId": 3})
    assert topology_of(HELLO) != topology_of({**HELLO, "primary": "m1:1"})


def test_the_term_is_in_the_election_id() -> None:
    assert election_term({"electionId": ObjectId("7fffffff000000000000002a")}) == 42
