"""The fail point ``failCommand``: which commands it affects, and how.

It fails a command before the command runs, delays it, closes the client's connection, or adds a write concern error to
the reply of a write that has run.
"""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from bson.decimal128 import Decimal128

from shardwright.daemon.error_extra_info import extra_info
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_elements, from_elements, is_string, spans
from shardwright.wire.type_names import type_name_of

FAIL_COMMAND: Final = "failCommand"

_INT32_RANGE: Final = 2**32
_NOT_AN_OBJECT: Final = 10065

_NEVER_FAILS: Final = "configureFailPoint"
"""Otherwise a fail point might be impossible to turn off."""


@dataclass(frozen=True, slots=True)
class CommandCall:
    """A command that is about to run.

    Attributes:
        names: its name and aliases.
        namespace: of the collection that it is run on.
        app_name: of the client, "" if it sent none.
        thread_name: of the client's connection, as ``currentOp`` shows it.
    """

    names: Set[str]
    namespace: str
    app_name: str
    thread_name: str = ""


class FailCommandError(CommandError):
    """The error that ``failCommand`` causes.

    Attributes:
        has_given_labels: the test has said which labels it has, and it gets no others.
    """

    has_given_labels = False


class FailCommandCloseError(OSError):
    """The connection to the client is to be closed."""


def fails_before(data: Mapping[str, Any], call: CommandCall) -> bool:
    """Whether the fail point stops, delays or fails a command before it runs."""
    return _is_affected(data, call) and (
        data.get("closeConnection") is True or data.get("blockConnection") is True or _error_code(data) is not None
    )


def fails_after(data: Mapping[str, Any], call: CommandCall) -> bool:
    """Whether the fail point adds a write concern error to a command's reply."""
    return "writeConcernError" in data and _is_affected(data, call)


def block_seconds(data: Mapping[str, Any]) -> float:
    """How long a command is delayed.

    Raises:
        CommandError: InvalidOptions.
    """
    if data.get("blockConnection") is not True:
        return 0.0
    milliseconds = _integer(data.get("blockTimeMS"))
    if milliseconds is None:
        raise CommandError(ErrorCode.InvalidOptions, "must specify 'blockTimeMS' when 'blockConnection' is true")
    if milliseconds < 0:
        raise CommandError(ErrorCode.InvalidOptions, "'blockTimeMS' must be non-negative")
    return milliseconds / 1000


def raise_failure(data: Mapping[str, Any]) -> None:
    """Fail a command once it has been delayed.

    Raises:
        FailCommandCloseError: the client's connection is to be closed.
        FailCommandError: the command fails.
        CommandError: TypeMismatch, ``errorExtraInfo`` is not a document; or as `extra_info`.
    """
    if data.get("closeConnection") is True:
        raise FailCommandCloseError("the fail point failCommand closes the connection")
    code = _error_code(data)
    if not code:
        return
    extra = extra_info(code, _given_info(data))
    error = FailCommandError(code, "Failing command via 'failCommand' failpoint", labels=_labels(data), extra=extra)
    error.has_given_labels = isinstance(data.get("errorLabels"), list)
    raise error


def _given_info(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if "errorExtraInfo" not in data:
        return None
    extra = data["errorExtraInfo"]
    if not isinstance(extra, Mapping):
        raise CommandError(
            ErrorCode.TypeMismatch,
            f'"errorExtraInfo" had the wrong type. Expected object, found {type_name_of(extra)}',
        )
    return extra


def reply_with_error(data: Mapping[str, Any], reply: bytes) -> bytes:
    """The raw reply of a command that has run, with the write concern error before ``ok`` and the labels behind.

    Raises:
        CommandError: 10065, ``writeConcernError`` is neither a document nor an array.
    """
    labels, error = _labels(data), data["writeConcernError"]
    if not isinstance(error, Mapping | list):
        raise CommandError(_NOT_AN_OBJECT, "invalid parameter: expected an object (writeConcernError)")
    added = encode_elements({"writeConcernError": error})
    elements = []
    for name, (_, start, _, end) in spans(reply):
        if name == b"ok":
            elements.append(added)
        if name != b"writeConcernError":
            elements.append(reply[start:end])
    if labels:
        elements.append(encode_elements({"errorLabels": list(labels)}))
    return from_elements(b"".join(elements))


def _is_affected(data: Mapping[str, Any], call: CommandCall) -> bool:
    if _NEVER_FAILS in call.names:
        return False
    if data.get("namespace", call.namespace) != call.namespace:
        return False
    app_name = data.get("appName", call.app_name)
    if (app_name if is_string(app_name) else "") != call.app_name:
        return False
    if data.get("threadName", call.thread_name) != call.thread_name:
        return False
    commands = data.get("failCommands")
    return "failAllCommands" in data or (
        isinstance(commands, list) and any(each in call.names for each in commands if is_string(each))
    )


def _error_code(data: Mapping[str, Any]) -> int | None:
    """The lower 32 bits of the code: with 0 the command succeeds. None if there is none, or it is no whole number."""
    code = _integer(data.get("errorCode"))
    return None if code is None else (code + _INT32_RANGE // 2) % _INT32_RANGE - _INT32_RANGE // 2


def _integer(value: Any) -> int | None:  # noqa: ANN401 - whatever a client sent
    number = value.to_decimal() if isinstance(value, Decimal128) else value
    if isinstance(number, bool) or not isinstance(number, int | float | Decimal):
        return None
    return int(number) if math.isfinite(number) and number % 1 == 0 else None


def _labels(data: Mapping[str, Any]) -> tuple[str, ...]:
    labels = data.get("errorLabels")
    return tuple(labels) if isinstance(labels, list) else ()
