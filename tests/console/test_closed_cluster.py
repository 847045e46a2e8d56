"""Log-in, rights, actions and their audit, and the death of a router, with access control."""

import json
import ssl
import threading
import time
from http.client import HTTPException
from pathlib import Path
from typing import Final

import pytest
from pymongo.errors import OperationFailure

from tests.certificates import Authority
from tests.console.browser import Browser, running_console
from tests.console.conftest import NAMESPACE, PASSWORD, Closed

INTERRUPTED: Final = 11601

PAGES: Final = (
    "/",
    "/collections",
    f"/collection?ns={NAMESPACE}",
    "/heat",
    "/operations",
    "/balancer",
    "/security",
    "/why",
)


def test_without_a_session_there_is_only_the_log_in(closed: Closed) -> None:
    browser = closed.console.browser()
    answer = browser.get("/balancer")
    assert answer.status == 303
    assert answer.headers["location"] == "/log-in?next=%2Fbalancer"
    assert browser.get("/log-in").status == 200
    assert browser.get("/api/overview").status == 401
    assert browser.post("/act", csrf="x", action="balancer-stop").status == 303
    assert browser.get("/api/openapi.json").status == 200


def test_a_wrong_password_is_refused(closed: Closed) -> None:
    browser = closed.console.browser()
    answer = browser.log_in("manager", "wrong")
    assert answer.status == 403
    assert "name, password or database are wrong" in answer.text
    assert "wrong" not in closed.console.log.read_text().replace("are wrong", "")


def test_the_cookie_is_kept_from_scripts_and_other_sites(closed: Closed) -> None:
    browser = closed.browser("monitor")
    cookie = browser.set_cookies[-1].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


def test_a_console_with_a_certificate_serves_only_tls(closed: Closed, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = ("--tls-certificate-key-file", str(authority.issue("console.pem").path))
    with running_console(closed.cluster.directory, tmp_path / "console.log", *options) as console:
        assert console.url.startswith("https:")
        browser = Browser(console.url, tls=ssl.create_default_context(cafile=str(authority.path)))
        assert browser.log_in("monitor", PASSWORD).status == 303
        assert "secure" in browser.set_cookies[-1].lower().split("; ")
        assert browser.api("session")["user"] == "monitor@admin"
        with pytest.raises((OSError, HTTPException)):
            Browser(console.url).get("/log-in")


@pytest.mark.parametrize("target", ["//elsewhere.example/", "https://elsewhere.example/", "/\\elsewhere.example"])
def test_a_log_in_leads_to_this_console_only(closed: Closed, target: str) -> None:
    browser = closed.console.browser()
    assert f'value="{target}"' not in browser.get("/log-in", next=target).text


def test_a_log_out_ends_the_session(closed: Closed) -> None:
    browser = closed.browser("monitor")
    kept = dict(browser.cookies)
    assert browser.post("/log-out").status == 303
    browser.cookies = kept
    assert browser.get("/").status == 303


@pytest.mark.parametrize("user", ["manager", "monitor", "reader"])
@pytest.mark.parametrize("path", PAGES)
def test_each_role_sees_each_page(closed: Closed, user: str, path: str) -> None:
    answer = closed.browser(user).get(path)
    if user == "reader" and path.startswith(("/collection", "/heat")):
        assert answer.status in (200, 403)
    else:
        assert answer.status == 200, answer.text


def test_rights_are_those_of_the_user(closed: Closed) -> None:
    reader = closed.browser("reader").api("session")
    assert (reader["user"], reader["may"]) == ("reader@admin", [])
    assert closed.browser("manager").api("session")["may"] == ["balancer-start", "balancer-stop"]
    assert "Start the balancer" not in closed.browser("monitor").get("/balancer").text
    assert "Start the balancer" in closed.browser("manager").get("/balancer").text
    assert closed.browser("reader").api("overview")["refusals"] != []


def test_a_form_without_its_token_is_refused(closed: Closed) -> None:
    browser = closed.browser("manager")
    assert browser.post("/act", csrf="forged", action="balancer-start").status == 403
    assert browser.post("/api/act", csrf="", action="balancer-start").status == 403
    assert browser.api("balancer")["mode"] == "off"


def test_the_balancer_is_started_and_stopped_by_who_may(closed: Closed) -> None:
    browser = closed.browser("manager")
    page = browser.get("/act", action="balancer-start").text
    assert "db.adminCommand({ balancerStart: 1 })" in page
    assert "begins its next round" in page
    assert browser.post("/act", action="balancer-start").status == 303
    with closed.cluster.client() as client:
        assert client.admin.command("balancerStatus")["mode"] == "full"
        assert browser.api("balancer")["mode"] == "full"
        assert browser.post("/api/act", action="balancer-stop").document["command"]
        assert client.admin.command("balancerStatus")["mode"] == "off"
    last = closed.console.audit()[-1]
    assert last["msg"] == "Performed an action"
    assert (last["user"], last["action"]) == ("manager@admin", "balancer-stop")
    assert last["command"] == "{ balancerStop: 1 }"


def test_an_action_without_the_right_is_refused_and_recorded(closed: Closed) -> None:
    browser = closed.browser("monitor")
    assert browser.post("/act", action="balancer-start").status == 403
    assert browser.post("/api/act", action="balancer-start").status == 403
    last = closed.console.audit()[-1]
    assert (last["msg"], last["user"]) == ("Refused an action", "monitor@admin")
    with closed.cluster.client() as client:
        assert client.admin.command("balancerStatus")["mode"] == "off"


def test_a_chunk_is_split_and_moved(closed: Closed) -> None:
    browser = closed.browser("manager")
    chunk = browser.api("chunks", ns=NAMESPACE)["chunks"][2]
    bounds = {
        "ns": NAMESPACE,
        "min": json.dumps(chunk["min"]),
        "max": json.dumps(chunk["max"]),
    }
    to = "shard1" if chunk["shard"] == "shard0" else "shard0"
    assert f"moves to {to}" in browser.get("/act", action="move-chunk", to=to, **bounds).text
    assert browser.post("/act", action="move-chunk", to=to, **bounds).status == 303
    moved = browser.api("chunks", ns=NAMESPACE)["chunks"][2]
    assert moved["shard"] == to
    assert browser.post("/act", action="split-chunk", **bounds).status == 303
    assert len(browser.api("chunks", ns=NAMESPACE)["chunks"]) == 5
    assert browser.get("/act", action="move-chunk", ns=NAMESPACE, to=to).status == 400
    assert browser.post("/act", action="move-chunk", to="nowhere", **bounds).status == 409


def test_a_dry_run_comes_before_a_shard_is_drained(closed: Closed) -> None:
    browser = closed.browser("manager")
    expected = browser.api("dry-run", action="drain-shard", shard="shard0")
    assert expected["moves"]
    by_shard = {each["ns"]: each["chunksByShard"] for each in browser.api("collections")["collections"]}
    chunks = sum(each.get("shard0", 0) for ns, each in by_shard.items() if not ns.startswith("config."))
    assert expected["chunks"] == chunks
    assert {(each["from"], each["to"]) for each in expected["moves"]} == {("shard0", "shard1")}
    assert expected["bytes"] > 0
    assert any("primary shard of shop" in each for each in expected["notes"])
    page = browser.get("/act", action="drain-shard", shard="shard0").text
    assert "What would move" in page
    assert "removeShard: &#34;shard0&#34;" in page
    with closed.cluster.client() as client:
        assert not [each for each in client.config.shards.find() if each.get("draining")]


def test_other_wizards_have_a_dry_run_too(closed: Closed) -> None:
    browser = closed.browser("manager")
    added = browser.api("dry-run", action="add-shard", host="third/127.0.0.1:1")
    assert {each["to"] for each in added["moves"]} == {"third"}
    assert 0 < added["chunks"] <= sum(each["chunks"] for each in browser.api("collections")["collections"])
    copied = browser.api("dry-run", action="reshard-collection", ns=NAMESPACE, key="{ total: 1 }")
    assert {each["to"] for each in copied["moves"]} == {"shard0", "shard1"}
    page = browser.get("/act", action="reshard-collection", ns=NAMESPACE, key="{ total: 1 }").text
    assert "reshardCollection: &#34;shop.orders&#34;, key: { total: 1 }" in page
    assert browser.get("/api/dry-run", action="reshard-collection", ns=NAMESPACE, key="total").status == 400
    assert browser.get("/api/dry-run", action="reshard-collection", ns="shop.nothing", key="{ a: 1 }").status == 404
    assert browser.get("/api/dry-run", action="balancer-stop").status == 400


def test_a_dry_run_comes_before_a_shard_is_added_to_a_zone(closed: Closed) -> None:
    browser = closed.browser("manager")
    adding = {"action": "add-shard-to-zone", "shard": "shard1", "zone": "hot"}
    limits = {"ns": "shop.zoned", "min": {"a": 0}, "max": {"a": 300}}
    with closed.cluster.client() as client:
        client.admin.command("shardCollection", "shop.zoned", key={"a": 1})
        for middle in (100, 200, 300, 400):
            client.admin.command("split", "shop.zoned", middle={"a": middle})
        client.shop.zoned.insert_many([{"a": number} for number in range(500)])
        assert "No range is assigned to zone hot yet" in browser.api("dry-run", **adding)["notes"][0]
        client.admin.command("addShardToZone", "shard0", zone="hot")
        client.admin.command("updateZoneKeyRange", "shop.zoned", min=limits["min"], max=limits["max"], zone="hot")
        assert "shard0 is in zone hot already." in browser.api("dry-run", **{**adding, "shard": "shard0"})["notes"]
        found = browser.api("dry-run", **adding)
        page = browser.get("/act", **adding).text
        client.admin.command("updateZoneKeyRange", "shop.zoned", min=limits["min"], max=limits["max"], zone=None)
        client.admin.command("removeShardFromZone", "shard0", zone="hot")
        client.shop.drop_collection("zoned")
    [move] = found["moves"]
    assert (move["ns"], move["from"], move["to"], move["chunks"]) == ("shop.zoned", "shard0", "shard1", 1)
    assert found["ranges"] == [limits]
    assert found["bytes"] > 0
    assert "In these ranges" in page
    assert ">300<" in page


def test_a_range_is_assigned_to_a_zone(closed: Closed) -> None:
    browser = closed.browser("manager")
    zone = {"ns": NAMESPACE, "min": "{ customer: 0 }", "max": "{ customer: 100 }", "zone": "cold"}
    without = browser.api("dry-run", action="assign-zone", **zone)
    assert without["moves"] == []
    assert "No shard is in zone cold" in without["notes"][0]
    assert browser.post("/act", action="add-shard-to-zone", shard="shard1", zone="cold").status == 303
    expected = browser.api("dry-run", action="assign-zone", **zone)
    assert expected["ranges"] == [{"ns": NAMESPACE, "min": {"customer": 0}, "max": {"customer": 100}}]
    assert [(each["ns"], each["from"], each["to"]) for each in expected["moves"]] == [(NAMESPACE, "shard0", "shard1")]
    assert closed.browser("monitor").post("/act", action="assign-zone", **zone).status == 403
    assert browser.post("/act", action="assign-zone", **zone).status == 303
    with closed.cluster.client() as client:
        [found] = client.config.tags.find({"ns": NAMESPACE})
        assert (found["tag"], found["min"]) == ("cold", {"customer": 0})
        client.admin.command("updateZoneKeyRange", NAMESPACE, min={"customer": 0}, max={"customer": 100}, zone=None)
        client.admin.command("removeShardFromZone", "shard1", zone="cold")


def test_an_operation_that_runs_is_shown_and_killed(closed: Closed) -> None:
    browser = closed.browser("manager")
    errors: list[int | None] = []

    def read() -> None:
        with closed.cluster.client() as client:
            try:
                list(client.shop.orders.find({"$where": "sleep(500) || true"}))
            except OperationFailure as error:
                errors.append(error.code)

    thread = threading.Thread(target=read)
    thread.start()
    deadline = time.monotonic() + 60
    while not errors:
        assert time.monotonic() < deadline
        for each in browser.api("current-operations")["operations"]:
            if each["ns"] == NAMESPACE and each["opid"]:
                assert "is interrupted" in browser.get("/act", action="kill-operation", opid=each["opid"]).text
                assert browser.post("/act", action="kill-operation", opid=each["opid"]).status == 303
        thread.join(0.5)
    thread.join()
    assert errors == [INTERRUPTED]
    assert closed.console.audit()[-1]["action"] == "kill-operation"
    assert closed.browser("monitor").post("/act", action="kill-operation", opid="shard0:1").status == 403


def test_shapes_are_added_up_over_routers_for_who_may_see_them(closed: Closed) -> None:
    for router in ("router.0", "router.1"):
        with closed.cluster.direct(router) as direct:
            for number in range(3):
                direct.shop.orders.find_one({"customer": number, "router": router})
    deadline = time.monotonic() + 60
    while True:
        found = closed.browser("monitor").api("query-shapes")["shapes"]
        counts = [each["count"] for each in found if each["shape"].get("filter") == {"customer": "?", "router": "?"}]
        if counts == [6]:
            break
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    refused = closed.browser("reader").api("query-shapes")
    assert refused["shapes"] == []
    assert "not authorized" in refused["refusals"][0]
    assert "need the role clusterMonitor" in closed.browser("reader").get("/operations").text


def test_passwords_and_credentials_are_nowhere(closed: Closed) -> None:
    browser = closed.browser("manager")
    text = browser.get("/security").text + browser.get("/api/security").text + closed.console.log.read_text()
    assert PASSWORD not in text
    assert "credentials" not in text
    assert "manager" in text


def test_the_death_of_a_router_is_survived(closed: Closed) -> None:
    browser = closed.browser("manager")
    closed.cluster.kill("router.0")
    try:
        deadline = time.monotonic() + 60
        while (answer := browser.get("/api/collections")).status != 200:
            assert time.monotonic() < deadline, answer.text
        assert browser.get("/").status == 200
        closed.cluster.kill("router.1")
        while (answer := browser.get("/operations")).status != 503:
            assert time.monotonic() < deadline, answer.text
        assert "No router answers" in answer.text
    finally:
        closed.cluster.restart("router.0")
        closed.cluster.restart("router.1")
    deadline = time.monotonic() + 60
    while browser.get("/operations").status != 200:
        assert time.monotonic() < deadline


def test_a_dropped_user_is_logged_out(closed: Closed) -> None:
    with closed.cluster.client() as client:
        client.admin.command("createUser", "leaving", pwd=PASSWORD, roles=["clusterMonitor"])
        browser = closed.browser("leaving")
        assert browser.api("session")["roles"] == ["clusterMonitor@admin"]
        client.admin.command("dropUser", "leaving")
    deadline = time.monotonic() + 60
    while (answer := browser.get("/api/operations")).status == 200:
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.5)
    assert answer.status == 401, answer.text
    assert browser.get("/api/session").status == 401
    assert browser.get("/").headers["location"].startswith("/log-in")


def test_a_user_without_roles_sees_no_numbers(closed: Closed) -> None:
    with closed.cluster.client() as client:
        client.admin.command("createUser", "nothing", pwd=PASSWORD, roles=[])
    browser = closed.browser("nothing")
    found = browser.api("overview")
    assert found["rates"] is None
    assert found["refusals"] != []
    assert ["could not be read" in each["what"] for each in found["problems"]] == [True]
    assert found["configServers"]["members"] == []
    operations = browser.api("operations")
    assert (operations["total"], operations["commands"], operations["shards"]) == (None, [], [])
    page = browser.get("/").text
    assert "All processes answer" not in page
    assert "collecting" not in page
    assert closed.browser("monitor").api("overview")["rates"] is not None


def test_failed_log_ins_are_limited(closed: Closed) -> None:
    browser = closed.console.browser()
    texts = [browser.log_in("manager", "guess").text for _ in range(12)]
    assert "too many failed log-ins" in texts[-1]
