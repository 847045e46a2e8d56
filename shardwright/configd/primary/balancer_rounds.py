"""How the balancer's rounds are going, for the commands that report them, wait for them or start the next one."""

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class BalancerRounds:
    """The rounds of one term.

    Attributes:
        number: how many have begun.
        is_active: whether one is under way, or has begun to find out whether it may be.
        is_deciding: whether one is under way that may balance.
        mode: the mode that the balancer has last read from valid settings.
    """

    def __init__(self) -> None:
        self.number = 0
        self.is_active = False
        self.is_deciding = False
        self.mode = "full"
        self._moving = 0
        self._steps = 0
        self._over = trio.Event()
        self._wanted = trio.Event()
        self._changed = trio.Event()

    @property
    def is_balancing(self) -> bool:
        """Whether a round that may balance is under way, or moves of one."""
        return self.is_deciding or self._moving > 0

    def begin(self) -> None:
        """A round begins; it takes up all that was changed before."""
        self.number += 1
        self.is_active = True
        self._wanted = trio.Event()

    def end(self) -> None:
        """The round is over."""
        self.is_active = self.is_deciding = False
        self._over.set()
        self._over = trio.Event()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Something that is done beside the rounds, and that nobody may find under way once the balancer is stopped."""
        self._steps += 1
        try:
            yield
        finally:
            self._steps -= 1
            self._over.set()
            self._over = trio.Event()

    @contextmanager
    def moving(self) -> Iterator[None]:
        """The moves of a round, which may take longer than the next round waits for them."""
        self._moving += 1
        try:
            with self.step():
                yield
        finally:
            self._moving -= 1

    def want_next(self) -> None:
        """Something was changed that the balancer should deal with: the next round is due at once."""
        self._wanted.set()
        self._changed.set()
        self._changed = trio.Event()

    async def wait_changed(self, seconds_max: float) -> None:
        """Return after some time, or as soon as something is changed that the balancer should deal with."""
        with trio.move_on_after(seconds_max):
            await self._changed.wait()

    async def wait_wanted(self, seconds_max: float) -> None:
        """Return when the next round is due: after some time, or as soon as one is wanted."""
        with trio.move_on_after(seconds_max):
            await self._wanted.wait()

    async def wait_over(self) -> None:
        """Return when the round that is under way, if any, is over, and so are all steps and moves."""
        number = self.number
        while (self.is_active and self.number == number) or self._steps:
            await self._over.wait()
