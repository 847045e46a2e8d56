"""The modes of ``configureFailPoint``: which of the calls that reach a fail point it affects."""

import math
import random
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from bson.decimal128 import Decimal128

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import is_string
from shardwright.wire.type_names import type_name_of

Count = Callable[[], int]
"""Returns 0 when it is called first, then 1, and so on."""

_INT32_MAX: Final = 2**31 - 1
_INT64_RANGE: Final = 2.0**63


def parse_mode(mode: object, turn_off: Callable[[], None], count: Count) -> Callable[[], bool] | None:
    """The function that decides each time whether the fail point fires; None for ``off``.

    Args:
        mode: the argument of the command.
        turn_off: called when the fail point has fired for the last time.
        count: counts the calls.

    Raises:
        CommandError: TypeMismatch, BadValue.
    """
    if is_string(mode):
        if mode not in ("off", "alwaysOn"):
            raise CommandError(ErrorCode.BadValue, f"unknown mode: {mode}")
        return None if mode == "off" else lambda: True
    match mode:
        case {"times": times}:
            return _first(max(_whole_number("times", times), 1), turn_off, count)  # 0 fires once, in MongoDB too
        case {"skip": skipped}:
            return _after(_whole_number("skip", skipped), count)
        case {"activationProbability": probability}:
            return _sometimes(probability)
        case Mapping():
            raise CommandError(
                ErrorCode.BadValue,
                "'mode' must be one of 'off', 'alwaysOn', '{times:n}', '{skip:n}' or '{activationProbability:p}'",
            )
    raise CommandError(ErrorCode.TypeMismatch, "'mode' must be a string or JSON object")


def _whole_number(name: str, value: Any) -> int:  # noqa: ANN401 - whatever a client sent
    number: Any = value.to_decimal() if isinstance(value, Decimal128) else value
    if isinstance(number, bool) or not isinstance(number, int | float | Decimal):
        raise CommandError(
            ErrorCode.TypeMismatch, f'Expected field "{name}" to have numeric type, but found {type_name_of(value)}'
        )
    if not math.isfinite(number) or number % 1 or abs(float(number)) > _INT64_RANGE:
        raise CommandError(
            ErrorCode.BadValue,
            f'Expected field "{name}" to have a value exactly representable as a 64-bit integer, '
            f"but found {name}: {_text(value)}",
        )
    if number < 0:
        raise CommandError(ErrorCode.BadValue, f"'{name}' option to 'mode' must be positive")
    if number > _INT32_MAX:
        raise CommandError(ErrorCode.BadValue, f"'{name}' option to 'mode' is too large")
    return int(number)


def _text(number: float | Decimal128) -> str:
    """A number as a mongod shows it in messages."""
    text = str(number) if isinstance(number, Decimal128) else f"{number:.16g}"
    return text if "." in text or isinstance(number, Decimal128) else f"{text}.0"  # "1e+20.0" and "nan.0" as well


def _first(times: int, turn_off: Callable[[], None], count: Count) -> Callable[[], bool]:
    def fires() -> bool:
        before = count()
        if before >= times:
            turn_off()
        return before < times

    return fires


def _after(skipped: int, count: Count) -> Callable[[], bool]:
    return lambda: count() >= skipped


def _sometimes(probability: Any) -> Callable[[], bool]:  # noqa: ANN401 - whatever a client sent
    if isinstance(probability, Decimal128):
        probability = float(probability.to_decimal())
    if isinstance(probability, bool) or not isinstance(probability, int | float):
        raise CommandError(
            ErrorCode.TypeMismatch, "the 'activationProbability' option to 'mode' must be a double between 0 and 1"
        )
    if probability < 0 or probability > 1:  # NaN is accepted, and never fires
        shown = str(float(probability)).removesuffix(".0")
        raise CommandError(ErrorCode.BadValue, f"activationProbability must be between 0.0 and 1.0; found {shown}")
    return lambda: random.random() < probability
