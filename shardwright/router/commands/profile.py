"""``profile``: on a router, only which operations are logged as slow."""

from typing import Any, Final

from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.processes.siblings import tell_siblings
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_UNCHANGED: Final = -1
_FILTER: Final = b"filter"
_KNOB_IS_OFF: Final = 7283301


@command("profile")
async def profile(operation: Operation) -> Reply:
    """Shows or changes which operations are logged as slow, in all processes of this router."""
    context, request = operation.context, operation.request
    arguments = Arguments.of(request)
    arguments.required_value(b"profile")
    level = arguments.maybe_integer(b"profile", minimum=None)
    if level not in (_UNCHANGED, 0):
        raise CommandError(
            ErrorCode.BadValue,
            "Profiling is not permitted on mongoS: the 'profile' field should be 0 to change 'slowms', 'sampleRate', "
            "or 'filter' settings for logging, or -1 to view current values",
        )
    slow_ms, sample_rate = arguments.maybe_integer(b"slowms", minimum=None), _sample_rate(arguments)
    _refuse_filter(arguments)
    rule = context.slow_operations
    reply = {"was": 0, "slowms": int(rule.slow_ms), "sampleRate": rule.sample_rate}
    if level == 0:
        rule.slow_ms = rule.slow_ms if slow_ms is None else slow_ms
        rule.sample_rate = rule.sample_rate if sample_rate is None else sample_rate
        changes: dict[str, Any] = {"profile": 0, "slowms": int(rule.slow_ms), "sampleRate": rule.sample_rate}
        await tell_siblings(context, request, changes)
    return reply


def _sample_rate(arguments: Arguments) -> float | None:
    rate = arguments.maybe_number(b"sampleRate")
    if rate is not None and not 0 <= rate <= 1:
        raise CommandError(ErrorCode.BadValue, "'sampleRate' must be between 0.0 and 1.0 inclusive")
    return rate


def _refuse_filter(arguments: Arguments) -> None:
    """Refuse a filter on the operations to log.

    Raises:
        CommandError: BadValue; CommandNotSupported.
    """
    chosen = arguments.value(_FILTER)
    if chosen is None or chosen == "unset":
        return
    if not isinstance(chosen, dict):
        raise CommandError(ErrorCode.BadValue, "Expected an object, or the string 'unset'.")
    raise CommandError(ErrorCode.CommandNotSupported, "This router does not filter the operations that it logs")


@command("setProfilingFilterGlobally")
async def set_profiling_filter_globally(operation: Operation) -> Reply:
    """Not available, as on every server that was not started with a parameter for it."""
    raise CommandError(_KNOB_IS_OFF, "setProfilingFilterGlobally command requires query knob to be enabled")
