"""Composition of a command's stages, once for each kind of operation and not for each operation.

The work around a handler depends on the command, on the router's settings, and on generic fields of the request, such
as a session or a time limit. These are some twenty conditions, and nearly all have the same result for one operation
as for the one before. So each condition belongs to a named stage in one of two lists. The lists are evaluated for the
first operation of a kind, and all others of the kind reuse the result.

A kind is a command, the deciding fields of the request, and whether a passage has begun the operation. Settings are not
part of it: a change of a deciding setting changes the `Epoch`, which drops all compositions.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from shardwright.router.context.router_context import RouterContext
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.router_command import CommandHandler, RouterCommand
from shardwright.wire.passages import EPOCH

Run: TypeAlias = Callable[[Operation, RouterCommand], Awaitable[bytes | None] | None]
"""The function of a stage. It may return an awaitable to be awaited; a reply frame from that ends the operation."""

Wrap: TypeAlias = Callable[[RouterCommand, CommandHandler], CommandHandler]

Condition: TypeAlias = Callable[[RouterContext, RouterCommand], bool]

KINDS_MAX: Final = 4_096
"""Number of kinds after which all compositions are dropped, so that odd requests cannot fill the memory."""


def always(_: RouterContext, __: RouterCommand) -> bool:
    """Meet the condition for all commands."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions under which an operation has a stage.

    Attributes:
        fields: the request must have one of these; empty if it need not have any.
        unless: the request must have none of these.
        when: whether a command has the stage under the router's current settings.
        is_done_by_passages: whether operations that a passage has begun skip the stage, because the passage did it.
    """

    name: str
    fields: tuple[bytes, ...] = ()
    unless: tuple[bytes, ...] = ()
    when: Condition = always
    is_done_by_passages: bool = False

    def are_met(
        self, context: RouterContext, command: RouterCommand, fields: frozenset[bytes], *, is_begun: bool
    ) -> bool:
        """Whether operations of a kind have the stage."""
        return (
            (not self.fields or not fields.isdisjoint(self.fields))
            and fields.isdisjoint(self.unless)
            and not (is_begun and self.is_done_by_passages)
            and self.when(context, command)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Conditions):
    """A stage before the handler."""

    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Around(Conditions):
    """A wrapper of the handler."""

    wrap: Wrap


@dataclass(frozen=True, slots=True)
class ComposedCommand:
    """The composition for one kind of operation.

    Attributes:
        stages: the stages before the handler, in order.
        handler: the wrapped handler.
        may_be_learned: whether a passage may take over such operations, as far as the kind decides.
    """

    stages: tuple[Run, ...]
    handler: CommandHandler
    may_be_learned: bool


class ComposedCommands:
    """The commands of one router, by kind.

    Args:
        stages: the stages in the order in which they run.
        around: the wrappers, the outermost first.
        may_be_learned: returns whether passages may take over operations with certain deciding fields.
    """

    def __init__(
        self,
        context: RouterContext,
        stages: Sequence[Stage],
        around: Sequence[Around],
        may_be_learned: Callable[[frozenset[bytes]], bool],
    ) -> None:
        self._context = context
        self._stages = stages
        self._around = around
        self._may_be_learned = may_be_learned
        listed = (*stages, *around)
        self._deciding = frozenset(field for each in listed for field in (*each.fields, *each.unless))
        self._composed: dict[tuple[str, frozenset[bytes], bool], ComposedCommand] = {}
        self._epoch = EPOCH.number

    def of(self, command: RouterCommand, fields: Mapping[bytes, object], *, is_begun: bool) -> ComposedCommand:
        """Return the composition for a request.

        Args:
            fields: the top-level fields of the request.
            is_begun: whether a passage has begun the operation.
        """
        if self._epoch != EPOCH.number:
            self._composed.clear()
            self._epoch = EPOCH.number
        kind = (command.name, self._deciding.intersection(fields), is_begun)
        composed = self._composed.get(kind)
        if composed is None:
            if len(self._composed) >= KINDS_MAX:
                self._composed.clear()
            composed = self._composed[kind] = self._compose(command, kind[1], is_begun=is_begun)
        return composed

    def _compose(self, command: RouterCommand, fields: frozenset[bytes], *, is_begun: bool) -> ComposedCommand:
        def has(stage: Conditions) -> bool:
            return stage.are_met(self._context, command, fields, is_begun=is_begun)

        handler = command.handler
        for each in reversed(self._around):
            if has(each):
                handler = each.wrap(command, handler)
        stages = tuple(each.run for each in self._stages if has(each))
        return ComposedCommand(stages, handler, self._may_be_learned(fields))
