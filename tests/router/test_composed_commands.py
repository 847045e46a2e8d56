"""Composing commands: once for each kind of operation, and again in each epoch."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio

from shardwright.router import command_stages
from shardwright.router.command_stages import Around, ComposedCommand, ComposedCommands, Run, Stage
from shardwright.router.operations.operation import CommandHandler, Operation, RouterCommand
from shardwright.router.replies.reply_builder import Reply
from shardwright.wire.passages import EPOCH

if TYPE_CHECKING:
    from shardwright.router.context.router_context import RouterContext


class Composing:
    """A router with two stages, one setting, and a record of what was done."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.compositions = 0
        self.context = SimpleNamespace(is_strict=False)
        stages = (
            Stage(name="strictly", run=self._note("strictly"), when=lambda context, _: cast("Any", context).is_strict),
            Stage(name="session", run=self._note("session"), fields=(b"lsid",), unless=(b"txn",)),
            Stage(name="admission", run=self._note("admission"), is_done_by_passages=True),
        )
        around = (Around(name="outer", wrap=self._wrap("outer")), Around(name="inner", wrap=self._wrap("inner")))
        context = cast("RouterContext", self.context)
        self._commands = ComposedCommands(context, stages, around, self._may_be_learned)
        self.command = RouterCommand("echo", self._handle)

    def of(self, *fields: bytes, is_begun: bool = False) -> ComposedCommand:
        given = {b"echo": 1, b"$db": 1, **dict.fromkeys(fields, 1)}
        return self._commands.of(self.command, given, is_begun=is_begun)

    def run(self, composed: ComposedCommand) -> list[str]:
        """Return the steps of an operation, in order."""
        operation = cast("Operation", None)
        for run in composed.stages:
            run(operation, self.command)

        async def handle() -> None:
            await composed.handler(operation)

        trio.run(handle)
        done, self.done = self.done, []
        return done

    async def _handle(self, _: Operation) -> Reply:
        self.done.append("handler")
        return None

    def _may_be_learned(self, fields: frozenset[bytes]) -> bool:
        self.compositions += 1
        return b"txn" not in fields

    def _note(self, name: str) -> Run:
        return lambda _, __: self.done.append(name)

    def _wrap(self, name: str) -> Callable[[RouterCommand, CommandHandler], CommandHandler]:
        def wrap(_: RouterCommand, handler: CommandHandler) -> CommandHandler:
            def handle(operation: Operation) -> Awaitable[Reply]:
                self.done.append(name)
                return handler(operation)

            return handle

        return wrap


def test_stages_are_run_in_order_and_the_outermost_wrapper_first() -> None:
    composing = Composing()
    assert composing.run(composing.of(b"lsid")) == ["session", "admission", "outer", "inner", "handler"]


@pytest.mark.parametrize("fields", [(), (b"other",), (b"lsid", b"txn")])
def test_fields_decide(fields: tuple[bytes, ...]) -> None:
    composing = Composing()
    assert "session" not in composing.run(composing.of(*fields))


def test_what_a_passage_has_done_is_left_out() -> None:
    composing = Composing()
    assert "admission" not in composing.run(composing.of(is_begun=True))
    assert "admission" in composing.run(composing.of())


def test_passages_may_take_over_what_they_serve() -> None:
    composing = Composing()
    assert composing.of(b"lsid").may_be_learned
    assert not composing.of(b"lsid", b"txn").may_be_learned


def test_a_kind_is_composed_once() -> None:
    composing = Composing()
    assert composing.of(b"lsid", b"first") is composing.of(b"second", b"lsid")
    assert composing.compositions == 1


def test_a_setting_that_changes_the_epoch_counts_from_the_next_operation_on() -> None:
    composing = Composing()
    assert "strictly" not in composing.run(composing.of())
    composing.context.is_strict = True
    EPOCH.bump()
    assert composing.run(composing.of())[0] == "strictly"


def test_kinds_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_stages, "KINDS_MAX", 2)
    composing = Composing()
    for fields in ((), (b"lsid",), (b"txn",)):
        composing.of(*fields)
    assert composing.of(b"txn") is composing.of(b"txn")
    assert composing.compositions == 3
    composing.of()
    assert composing.compositions == 4
