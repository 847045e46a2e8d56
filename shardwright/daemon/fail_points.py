"""Fail points: named points in a daemon at which tests make it wait or fail.

Their commands and modes are MongoDB's (``configureFailPoint``, ``waitForFailPoint``; wiki page "The failCommand fail
point" and ``src/mongo/util/fail_point.h``). Code calls `FailPoints.should_fail`, or waits in `FailPoints.hang_while`.
Outside tests all are off, and a call costs a look-up in an empty dictionary.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from typing import Any, Final

import trio
from bson.decimal128 import Decimal128

from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.passages import EPOCH
from shardwright.wire.rawbson import is_string, type_name_of
from shardwright.wire.request import Request

Count = Callable[[], int]
"""Returns 0 when it is called first, then 1, and so on."""

_INT32_MAX: Final = 2**31 - 1
_INT64_RANGE: Final = 2.0**63


def parse_mode(mode: object, turn_off: Callable[[], None], count: Count) -> Callable[[], bool] | None:
    """Return the function that decides each time whether the fail point fires; None for ``off``.

    Args:
        turn_off: called when the fail point has fired for the last time.

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
    """Format a number as in mongod's messages."""
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


Matches = Callable[[Mapping[str, Any]], bool]


class _Switch:
    """The configuration of one fail point, and the tasks that wait for it to change."""

    def __init__(self) -> None:
        self.entered = 0
        self.data: Mapping[str, Any] = {}
        self._fires: Callable[[], bool] | None = None
        self._changes = trio.lowlevel.ParkingLot()

    @property
    def is_on(self) -> bool:
        return self._fires is not None

    def configure(self, fires: Callable[[], bool] | None, data: Mapping[str, Any]) -> None:
        self._fires = fires
        self.data = data
        self._changes.unpark_all()

    def enter(self) -> bool:
        """Whether the fail point fires for the caller; if so, it is counted as entered."""
        if self._fires is None or not self._fires():
            return False
        self.entered += 1
        self._changes.unpark_all()
        return True

    async def wait_for_change(self) -> None:
        await self._changes.park()


class FailPoints:
    """The fail points of one daemon.

    Args:
        new_count: returns a counter of the calls that reach a fail point after it is turned on, given its name.

    Attributes:
        is_any_on: whether any fail point is on; a cheap check for every request.
    """

    def __init__(self, names: Iterable[str], new_count: Callable[[str], Count] = lambda _: count().__next__) -> None:
        self.names = frozenset(names)
        self.is_any_on = False
        self._new_count = new_count
        self._switches: dict[str, _Switch] = {}
        self._active: dict[str, _Switch] = {}

    def configure(self, name: str, mode: object, data: Mapping[str, Any] | None = None) -> int:
        """Turn a fail point on or off; return how often it has been entered so far.

        Args:
            mode: ``"off"``, ``"alwaysOn"``, ``{times: n}``, ``{skip: n}`` or ``{activationProbability: p}``.
            data: parameters for the code at the fail point, such as the ``errorCode`` to fail with.

        Raises:
            CommandError: FailPointSetFailed, there is none of that name; TypeMismatch, BadValue, the mode is invalid.
        """
        switch = self._switch(name)
        fires = parse_mode(mode, lambda: self._turn_off(name), self._new_count(name))
        if fires is None:
            self._turn_off(name)
        else:
            switch.configure(fires, data or {})
            self._active[name] = switch
            self.is_any_on = True
            EPOCH.bump()
        return switch.entered

    def should_fail(self, name: str, matches: Matches | None = None) -> Mapping[str, Any] | None:
        """Return the fail point's data if it fires for this caller and `matches` accepts it, otherwise None."""
        assert name in self.names, name
        switch = self._active.get(name)
        if switch is None or (matches is not None and not matches(switch.data)):
            return None
        data = switch.data
        return data if switch.enter() else None

    def fail_if_on(self, name: str, default: ErrorCode = ErrorCode.InternalError) -> None:
        """Raise CommandError with the fail point's ``errorCode`` if it is on."""
        data = self.should_fail(name)
        if data is not None:
            raise CommandError(int(data.get("errorCode", default)), f"fail point {name} is enabled")

    async def hang_while(self, name: str, matches: Matches | None = None) -> None:
        """Wait until the fail point is turned off, if it is on."""
        if name not in self._active or self.should_fail(name, matches) is None:
            return
        switch = self._switches[name]
        while switch.is_on:
            await switch.wait_for_change()

    async def wait_entered(self, name: str, times: int) -> int:
        """Wait until the fail point has been entered ``times`` times since the daemon started; return its number."""
        switch = self._switch(name)
        while switch.entered < times:
            await switch.wait_for_change()
        return switch.entered

    def check_name(self, name: str) -> None:
        """Refuse an unknown name (FailPointSetFailed)."""
        if name not in self.names:
            raise CommandError(ErrorCode.FailPointSetFailed, f"{name} not found")

    def _turn_off(self, name: str) -> None:
        self._active.pop(name, None)
        self.is_any_on = bool(self._active)
        EPOCH.bump()
        self._switch(name).configure(None, {})

    def _switch(self, name: str) -> _Switch:
        self.check_name(name)
        return self._switches.setdefault(name, _Switch())


@dataclass(frozen=True, slots=True)
class FailPointConfiguration:
    """Arguments of ``configureFailPoint``, with an unchecked mode."""

    name: str
    mode: object
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FailPointWait:
    """Arguments of ``waitForFailPoint``.

    Attributes:
        times: the required number of entries.
        max_time_ms: maximum wait.
    """

    name: str
    times: int
    max_time_ms: int


def _any_name(name: str) -> None:
    """Accept all names."""


def parse_configuration(request: Request, check_name: Callable[[str], None] = _any_name) -> FailPointConfiguration:
    """Parse the arguments of ``configureFailPoint``.

    Args:
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
    if isinstance(data, list):  # mongod reads an array as a document with numbers as field names
        data = {str(position): value for position, value in enumerate(data)}
    if not isinstance(data, Mapping):
        raise CommandError(ErrorCode.TypeMismatch, "the 'data' option must be a JSON object")
    return FailPointConfiguration(name, request.get(b"mode"), data)


def parse_wait(request: Request) -> FailPointWait:
    """Parse ``waitForFailPoint``, which requires ``maxTimeMS``; CommandError with 40414, TypeMismatch or 51024."""
    arguments = Arguments.of(request)
    arguments.required_value(b"timesEntered")
    times = arguments.maybe_integer(b"timesEntered") or 0
    arguments.required_value(b"maxTimeMS")
    max_time_ms = arguments.maybe_integer(b"maxTimeMS") or 0
    return FailPointWait(arguments.string(b"waitForFailPoint"), times, max_time_ms)
