"""Every page in a real browser, on a cluster under load and moves: it renders, updates, acts, loads nothing else."""

import pytest

from tests.console.browser import RunningConsole
from tests.console.chromium import Chromium, Tab, check_first_paint, needs_chromium
from tests.console.conftest import PASSWORD, Closed, Load
from tests.console.test_screenshots import NARROW, PAGES, WIDE

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def busy(heated: RunningConsole, load: Load) -> RunningConsole:
    """The console of a cluster under load and moves."""
    assert load
    return heated


def is_own(address: str, console: RunningConsole) -> bool:
    return address.startswith((console.url, "data:", "about:"))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_renders_in_all_windows(busy: RunningConsole, chromium: Chromium, page: str) -> None:
    tab = Tab(chromium, busy.url)
    for width, height in (WIDE, NARROW):
        for dark in (False, True):
            tab.show(width, height, dark=dark)
            tab.open(PAGES[page])
            assert tab.run("document.querySelectorAll('h1').length") == 1
            assert tab.too_wide == [], width
            found = [each for each in tab.violations() if each["impact"] in ("serious", "critical")]
            assert found == [], (width, dark)
    assert tab.errors == []
    assert [each for each in tab.requested if not is_own(each, busy)] == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", PAGES)
def test_the_first_paint_is_fast(busy: RunningConsole, chromium: Chromium, page: str) -> None:
    tab = Tab(chromium, busy.url)
    tab.show(*WIDE)
    check_first_paint(tab, PAGES[page])


def test_figures_update_in_place(busy: RunningConsole, chromium: Chromium) -> None:
    tab = Tab(chromium, busy.url)
    tab.open(PAGES["operations"])
    tab.run("window.stays = true")
    tab.wait("document.querySelector('#chart-data').dataset.charts.length > 400")
    before = tab.run("document.querySelector('#chart-data').dataset.charts")
    tab.wait(f"document.querySelector('#chart-data').dataset.charts !== {before!r}")
    tab.wait("document.querySelectorAll('[data-chart] canvas').length === 2")
    tab.wait("[...document.querySelectorAll('td')].some((each) => each.textContent === 'update')")
    assert tab.run("window.stays") is True
    tab.open(PAGES["balancer"])
    row = "[...document.querySelectorAll('tr')].find((each) => each.textContent.includes('moveChunk.commit'))"
    newest = f"{row}.querySelector('time').dateTime"
    shown = tab.run(newest)
    tab.wait(f"{newest} !== {shown!r}")
    assert tab.errors == []


def test_the_slider_and_the_segments_lead_on(busy: RunningConsole, chromium: Chromium) -> None:
    tab = Tab(chromium, busy.url)
    tab.open(PAGES["collection"])
    tab.click_through("[aria-label=Colour] a[href*=zone]")
    assert tab.run("document.querySelector('[aria-label=Colour] [aria-current]').textContent") == "by zone"
    tab.choose("#back", "1")
    assert "before" in tab.text


def test_a_page_is_used_by_keyboard(busy: RunningConsole, chromium: Chromium) -> None:
    tab = Tab(chromium, busy.url)
    tab.open("/")
    tab.press("Tab")
    assert tab.run("document.activeElement.className") == "skip"
    reached = set()
    for _ in range(40):
        tab.press("Tab")
        reached.add(tab.run("document.activeElement.getAttribute('href')"))
    assert {"/", "/collections", "/heat", "/operations", "/balancer", "/security", "/why"} <= reached


def log_in(tab: Tab, user: str) -> None:
    tab.open("/")
    tab.fill("[name=name]", user)
    tab.fill("[name=password]", PASSWORD)
    tab.click_through("form button")


def test_an_action_is_confirmed_and_done(closed: Closed, chromium: Chromium) -> None:
    tab = Tab(chromium, closed.console.url)
    log_in(tab, "manager")
    assert tab.run("document.querySelector('.name').textContent") == "manager@admin"
    tab.open("/balancer")
    tab.click_through("form:has([value=balancer-start]) button")
    assert "db.adminCommand({ balancerStart: 1 })" in tab.text
    with closed.cluster.client() as client:
        assert client.admin.command("balancerStatus")["mode"] == "off"
        tab.click_through("button.main")
        assert client.admin.command("balancerStatus")["mode"] == "full"
        tab.click_through("form:has([value=balancer-stop]) button")
        tab.click_through("button.main")
        assert client.admin.command("balancerStatus")["mode"] == "off"
    assert tab.errors == []


def test_an_action_is_refused_without_the_role(closed: Closed, chromium: Chromium) -> None:
    tab = Tab(chromium, closed.console.url)
    log_in(tab, "monitor")
    tab.open("/balancer")
    assert tab.run("document.querySelector('form:has([value=balancer-start])') === null")
    tab.open("/act?action=balancer-start")
    assert "Your roles do not allow this" in tab.text
    assert tab.run("document.querySelector('button.main') === null")


def test_a_wizard_shows_its_dry_run(closed: Closed, chromium: Chromium) -> None:
    tab = Tab(chromium, closed.console.url)
    log_in(tab, "manager")
    tab.open("/balancer")
    tab.click_through("form:has([value=drain-shard]) button")
    assert "What would move" in tab.text
    assert "shard0" in tab.text
    assert tab.run("document.querySelector('button.danger') !== null")


def test_an_open_page_survives_the_death_of_its_router(closed: Closed, chromium: Chromium) -> None:
    tab = Tab(chromium, closed.console.url)
    log_in(tab, "manager")
    tab.open("/")
    tab.run("window.stays = true")
    is_offline, read_at = (
        "document.body.classList.contains('is-offline')",
        "document.querySelector('.head time').dateTime",
    )
    closed.cluster.kill("router.0")
    try:
        before = tab.run(read_at)
        tab.wait(f"{read_at} !== {before!r} && !{is_offline}")
        closed.cluster.kill("router.1")
        tab.wait(is_offline)
    finally:
        closed.cluster.restart("router.0")
        closed.cluster.restart("router.1")
    tab.wait(f"!{is_offline}")
    assert tab.run("window.stays") is True
