"""Code that the reactor may run leaves it before it needs a task."""

import ast
import inspect
from collections.abc import Callable
from typing import Final

import pytest

from shardwright.router.command_stages import STAGES, Stage
from shardwright.router.commands.router_commands import ROUTER_COMMANDS
from shardwright.router.operations.operation import RouterCommand
from tests.reactor_rule import Function, Marked, breaches, marked_functions
from tests.syntax import HOUSE, ROOT, tree_of
from tests.test_layout import PACKAGES, sources

MARKED: Final = marked_functions([path for package in PACKAGES for path in sources(package)])
NAMES: Final = frozenset(each.function.name for each in MARKED)


def _is_marked(function: Callable[..., object]) -> bool:
    code = function.__code__
    return (code.co_filename, code.co_name) in {(str(each.path), each.function.name) for each in MARKED}


def _label(marked: Marked) -> str:
    return f"{marked.path.relative_to(ROOT)}:{marked.function.name}"


@pytest.mark.parametrize("marked", MARKED, ids=_label)
def test_it_leaves_the_reactor_before_it_needs_a_task(marked: Marked) -> None:
    found = breaches(str(marked.path.relative_to(ROOT)), marked.function, NAMES, marked.unmarked)
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize(
    "command", [each for each in ROUTER_COMMANDS if each.begins_in_reactor], ids=lambda each: each.name
)
def test_a_handler_that_begins_in_the_reactor_is_marked(command: RouterCommand) -> None:
    assert _is_marked(command.handler)


@pytest.mark.parametrize("stage", STAGES, ids=lambda each: each.name)
def test_a_stage_that_waits_is_marked(stage: Stage) -> None:
    """A stage that does not wait itself may return the awaitable of another function of its module."""
    assert not inspect.iscoroutinefunction(stage.run) or _is_marked(stage.run)


def test_all_that_waits_beside_the_stages_is_marked() -> None:
    tree = tree_of(HOUSE / "router" / "command_stages.py")
    waiting = {node.name for node in ast.walk(tree) if isinstance(node, Function)}
    assert waiting - {each.function.name for each in MARKED if each.path.stem == "command_stages"} == set()


@pytest.mark.parametrize(
    "name",
    [
        *("handle", "dispatch", "_serve_request", "find", "insert", "update", "delete", "find_and_modify"),
        *("commit_transaction", "abort_transaction", "may_change_owner", "understands"),
        *("aggregate", "open_change_stream"),
    ],
)
def test_what_begins_in_the_reactor_is_marked(name: str) -> None:
    assert name in NAMES


@pytest.mark.parametrize(
    "body",
    [
        "await trio.sleep(1)",
        "await unmarked()",
        "with trio.move_on_after(1): pass",
        "async with lock: pass",
        "async for each in found: pass",
        "if x:\n  await in_own_task()\nawait event.wait()",
        "for each in x:\n  await in_own_task()\nawait event.wait()",
        "try:\n  await marked()\nfinally:\n  await event.wait()",
        "try:\n  await in_own_task()\nexcept E:\n  pass\nawait event.wait()",
        "y = x or await in_own_task()\nawait event.wait()",
        "await (marked() if x else unmarked())",
        "return await event.wait()",
        "await shadowed()",
        "if REACTOR.loop is None:\n  await event.wait()\nawait event.wait()",
    ],
)
def test_a_breach_is_found(body: str) -> None:
    assert breaches("here", _function(body), frozenset({"marked", "shadowed"}), frozenset({"shadowed"}))


@pytest.mark.parametrize(
    "body",
    [
        "await other.shadowed()",
        "if REACTOR.loop is None:\n  await event.wait()",
        "await in_own_task()\nawait trio.sleep(1)",
        "await marked()\nreturn trio.current_time()",
        "if x:\n  return await marked()\nawait in_own_task()\nawait event.wait()",
        "if x:\n  await in_own_task()\n  await event.wait()\nawait marked()",
        "if x:\n  await in_own_task()\nelse:\n  raise E\nawait event.wait()",
        "while True:\n  await marked()\n  await in_own_task()\n  await event.wait()",
        "async def later():\n  await event.wait()\nawait marked()",
    ],
)
def test_what_keeps_the_rule_is_left_alone(body: str) -> None:
    assert not breaches("here", _function(body), frozenset({"marked", "shadowed"}), frozenset({"self.shadowed"}))


def _function(body: str) -> Function:
    indented = "\n".join(f"  {line}" for line in body.splitlines())
    (function,) = ast.parse(f"async def it():\n{indented}").body
    assert isinstance(function, Function)
    return function
