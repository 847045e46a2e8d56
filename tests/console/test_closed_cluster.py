"""Log-in, rights, actions and their audit, and the death of a router, with access control."""

import json
import threading
import time
from typing import Final

import pytest
from pymongo.errors import OperationFailure

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


def test_failed_log_ins_are_limited(closed: Closed) -> None:
    browser = closed.console.browser()
    texts = [browser.log_in("manager", "guess").text for _ in range(12)]
    assert "too many failed log-ins" in texts[-1]
