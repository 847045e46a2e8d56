"""Commands with the stages that they have: the work that commands have in common, composed once and not per operation.

What has to be done around a handler depends on the command, on the router's settings, and on the fields that any
command may have, such as a session or a time limit. An operation of a router with all of it would meet some twenty
conditions, nearly all of them the same as for the operation before. So the conditions are parts of named stages in two
lists, which are read when the first operation of a kind arrives. All others of the kind find what was composed then.

A kind is a command, the deciding fields that a request has, and whether a passage has begun it. Settings are not part
of it: those that decide change the `Epoch`, and what was composed in an earlier one is dropped.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from shardwright.router.context.router_context import RouterContext
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.router_command import CommandHandler, RouterCommand
from shardwright.wire.passages import EPOCH

Run: TypeAlias = Callable[[Operation, RouterCommand], Awaitable[bytes | None] | None]
"""What a stage does: at once, or in what it returns to be awaited. The frame of a reply ends the operation."""

Wrap: TypeAlias = Callable[[RouterCommand, CommandHandler], CommandHandler]

Condition: TypeAlias = Callable[[RouterContext, RouterCommand], bool]

KINDS_MAX: Final = 4_096
"""All is composed again after so many kinds, so that odd requests cannot fill the memory."""


def always(_: RouterContext, __: RouterCommand) -> bool:
    """The condition of stages that all commands have."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """When an operation has a stage.

    Attributes:
        name: what an engineer calls it.
        fields: the request has one of these; empty if it need not have any.
        unless: the request has none of these.
        when: whether a command has the stage, under the router's present settings.
        is_done_by_passages: operations that a passage has begun do not have the stage, as the passage has done it.
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
    """What is done before the handler is called.

    Attributes:
        run: does it.
    """

    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Around(Conditions):
    """What is done around the handler, or a wrapped one.

    Attributes:
        wrap: wraps it.
    """

    wrap: Wrap


@dataclass(frozen=True, slots=True)
class ComposedCommand:
    """What is done for the operations of one kind.

    Attributes:
        stages: in this order, before the handler.
        handler: the command's, wrapped.
        may_be_learned: whether a passage may take such operations over, as far as the kind decides.
    """

    stages: tuple[Run, ...]
    handler: CommandHandler
    may_be_learned: bool


class ComposedCommands:
    """The commands of one router, by kind.

    Args:
        context: of the router.
        stages: in the order in which they are run.
        around: the outermost first.
        may_be_learned: returns whether passages may take over operations with some of the deciding fields.
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
        """The composition for a request.

        Args:
            command: its command.
            fields: its top-level fields.
            is_begun: whether a passage has begun it.
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
