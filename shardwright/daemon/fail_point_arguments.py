"""The arguments of ``configureFailPoint`` and ``waitForFailPoint``, as mongod 6.0.5 checks them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import is_string
from shardwright.wire.request import Request


@dataclass(frozen=True, slots=True)
class FailPointConfiguration:
    """What ``configureFailPoint`` asks for; its mode is not checked yet.

    Attributes:
        name: the fail point.
        mode: see `daemon.fail_point_modes`.
        data: parameters for the code at the fail point.
    """

    name: str
    mode: object
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FailPointWait:
    """What ``waitForFailPoint`` asks for.

    Attributes:
        name: the fail point.
        times: how often it must have been entered.
        max_time_ms: how long to wait.
    """

    name: str
    times: int
    max_time_ms: int


def _any_name(name: str) -> None:
    """Accepts all names."""


def parse_configuration(request: Request, check_name: Callable[[str], None] = _any_name) -> FailPointConfiguration:
    """The arguments of ``configureFailPoint``.

    Args:
        request: the command.
        check_name: fails if there is no such fail point, which MongoDB checks first; by default any may exist.

    Raises:
        CommandError: FailPointSetFailed; IllegalOperation, without a mode; TypeMismatch.
    """
    given = request.get(b"configureFailPoint")
    name = given if is_string(given) else ""
    check_name(name)
    if b"mode" not in request.fields:
        raise CommandError(ErrorCode.IllegalOperation, "When setting a failpoint, you must supply a 'mode'")
    data = request.get(b"data", {})
    if isinstance(data, list):  # to mongod an array is a document whose fields are named by numbers
        data = {str(position): value for position, value in enumerate(data)}
    if not isinstance(data, Mapping):
        raise CommandError(ErrorCode.TypeMismatch, "the 'data' option must be a JSON object")
    return FailPointConfiguration(name, request.get(b"mode"), data)


def parse_wait(request: Request) -> FailPointWait:
    """The arguments of ``waitForFailPoint``, for which ``maxTimeMS`` is required.

    Raises:
        CommandError: 40414, TypeMismatch, 51024.
    """
    arguments = Arguments.of(request)
    arguments.required_value(b"timesEntered")
    times = arguments.maybe_integer(b"timesEntered") or 0
    arguments.required_value(b"maxTimeMS")
    max_time_ms = arguments.maybe_integer(b"maxTimeMS") or 0
    return FailPointWait(arguments.string(b"waitForFailPoint"), times, max_time_ms)
