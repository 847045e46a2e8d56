"""Fail points: named points in a daemon at which tests make it wait or fail.

Their commands and modes are MongoDB's (``configureFailPoint``, ``waitForFailPoint``; wiki page "The failCommand fail
point" and ``src/mongo/util/fail_point.h``). Code asks `FailPoints.should_fail`, or waits in `FailPoints.hang_while`.
Outside tests all are off, and asking costs a look-up in an empty dictionary.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

import trio

from shardwright.daemon.fail_point_modes import Count, parse_mode
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.passages import EPOCH

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
        names: all fail points of the daemon.
        new_count: counts the calls that reach a fail point from when it is turned on, given its name.

    Attributes:
        names: see above.
        is_any_on: whether any fail point is on; what a daemon checks for every request.
    """

    def __init__(self, names: Iterable[str], new_count: Callable[[str], Count] = lambda _: count().__next__) -> None:
        self.names = frozenset(names)
        self.is_any_on = False
        self._new_count = new_count
        self._switches: dict[str, _Switch] = {}
        self._active: dict[str, _Switch] = {}

    def configure(self, name: str, mode: object, data: Mapping[str, Any] | None = None) -> int:
        """Turn a fail point on or off; returns how often it has been entered so far.

        Args:
            name: the fail point.
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
        """The fail point's data if it fires for this caller, otherwise None.

        Args:
            name: the fail point.
            matches: whether the data applies to the caller; only then is the fail point counted as entered.
        """
        assert name in self.names, name
        switch = self._active.get(name)
        if switch is None or (matches is not None and not matches(switch.data)):
            return None
        data = switch.data
        return data if switch.enter() else None

    def fail_if_on(self, name: str, default: ErrorCode = ErrorCode.InternalError) -> None:
        """Fail with the fail point's ``errorCode`` if it is on.

        Raises:
            CommandError: it is on.
        """
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
        """Wait until the fail point has been entered ``times`` times since the daemon started; returns its number.

        Raises:
            CommandError: FailPointSetFailed, there is none of that name.
        """
        switch = self._switch(name)
        while switch.entered < times:
            await switch.wait_for_change()
        return switch.entered

    def check_name(self, name: str) -> None:
        """Check that there is a fail point of that name.

        Raises:
            CommandError: FailPointSetFailed.
        """
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
