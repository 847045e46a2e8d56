"""Replacing a primary whose daemon is away while its mongod runs on.

The replica set is unaware of daemons: it would keep that primary, and clients could not reach it. So the daemon of each
secondary periodically requests a hello from the primary's daemon. If that daemon does not answer for as long as the set
would wait for a silent member, it counts as away. If a majority of the set's daemons agrees, the secondary's mongod
stands for election. Each daemon shows its opinion to the others in its hello (`SILENT_PRIMARY`).

The replaced mongod would be elected again at once if its priority is higher. So the daemon of the new primary prevents
it from standing for election (`replSetFreeze`) until its daemon answers.

A slow daemon is not away: the first hello may take nearly as long as the set waits for a silent member. Only if it is
not answered, shorter ones follow.

A set of two members with data has no such majority, because an arbiter has no daemon.

A daemon that shuts down while its mongod is primary makes the mongod step down first, so that another member takes
over. Otherwise the mongod would stay primary without being reachable for clients.
"""

from functools import partial
from typing import Any, Final, NoReturn

import trio

from shardwright.daemon.sidecar.hello import SILENT_PRIMARY, HelloMirror
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.monitor import HelloTimeoutError, hello_within
from shardwright.wire.transport.pool import ConnectionPools
from shardwright.wire.transport.transport import Timeouts

logger = get_logger("daemon.sidecar.primary_watch")

_PAUSE_SECONDS: Final = 2.0
"""Pause between two hellos."""

_TURN_SECONDS: Final = 2.0
"""Delay of each further member's candidacy, so that members do not outvote each other."""

_FREEZE_SECONDS: Final = 15
"""Time for which a mongod is frozen at a time: longer than a round of `PrimaryWatch` takes."""

_STEP_DOWN_SECONDS: Final = 0.2
"""The pause before the next attempt to freeze a mongod that has not stepped down yet, and so refuses."""


class PrimaryWatch:
    """The watch on the daemon of the primary, while that is another member."""

    def __init__(self, mongod: LocalMongod, mirror: HelloMirror, pools: ConnectionPools, timeouts: Timeouts) -> None:
        self._mongod = mongod
        self._mirror = mirror
        self._pools = pools
        self._timeouts = timeouts
        self._missed: set[str] = set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            primary = (self._mirror.hello or {}).get("primary")
            is_own = primary == self._mongod.address
            if primary is None or (not self._missed if is_own else primary not in self._mirror.sidecars):
                await self._mirror.wait_for_change()
                continue
            try:
                await self._mirror.while_primary(
                    primary, self._hold_back_missed if is_own else partial(self._watch, primary)
                )
            except BackendError as replaced:
                logger.debug("The primary has changed", error=str(replaced))
            finally:
                self._mirror.silent_primary = None

    async def _watch(self, primary: str) -> NoReturn:
        silent_since: float | None = None
        while True:
            began = trio.current_time()
            seconds = self._timeouts.recheck_seconds
            if silent_since is None:
                seconds = self._timeouts.hello_seconds - self._timeouts.recheck_seconds
            try:
                await self._hello_of(primary, seconds)
                silent_since = None
                self._missed.discard(primary)
            except (BackendError, CommandError) as error:
                if isinstance(error, HelloTimeoutError) and not error.is_silent:
                    silent_since = None  # this process was paused, which proves nothing
                else:
                    silent_since = began if silent_since is None else silent_since
            is_silent = silent_since is not None and trio.current_time() - silent_since >= self._timeouts.hello_seconds
            self._mirror.silent_primary = primary if is_silent else None
            if is_silent:
                self._missed.add(primary)
                await self._stand_for_election(primary)
            await trio.sleep(_PAUSE_SECONDS)

    async def _hold_back_missed(self) -> None:
        """Keep former primaries whose daemons are away from being elected, as long as this mongod is primary."""
        logged: set[str] = set()
        while self._missed:
            self._missed.intersection_update(self._mirror.other_members)
            seconds = _PAUSE_SECONDS
            for member in tuple(self._missed):
                if not await self._freeze(member):
                    seconds = _STEP_DOWN_SECONDS
                elif member not in logged:
                    logged.add(member)
                    logger.warning("Keeping a mongod from being elected until its daemon answers", mongod=member)
                try:
                    await self._hello_of(member, self._timeouts.recheck_seconds)
                    self._missed.discard(member)
                except (BackendError, CommandError) as error:
                    logger.debug("The daemon of a former primary is away", mongod=member, error=str(error))
            await trio.sleep(seconds)

    async def _freeze(self, member: str) -> bool:
        """Freeze the mongod of a member for some time; return whether it accepts."""
        try:
            with hello_within(member, self._timeouts.recheck_seconds):
                await self._mongod.pool_of_member(member).command("admin", {"replSetFreeze": _FREEZE_SECONDS})
        except (BackendError, CommandError) as error:
            logger.debug("Could not keep a mongod from being elected", mongod=member, error=str(error))
            return False
        return True

    async def _hello_of(self, member: str, seconds: float) -> dict[str, Any]:
        """Request a hello from the daemon of a member.

        Raises:
            CommandError: it refuses, for example because it shuts down.
            BackendError: it does not answer within that many seconds, or is not registered.
        """
        address = self._mirror.sidecars.get(member)
        if address is None:
            raise BackendError(member, "the daemon of this mongod is not known", sent=False)
        with hello_within(address, seconds):
            return await self._pools[address].command("admin", {"hello": 1})

    async def _stand_for_election(self, primary: str) -> None:
        others = [each for each in self._mirror.other_members if each != primary]
        rank = sum(each < self._mongod.address for each in others)
        await trio.sleep(rank * _TURN_SECONDS)
        agreeing = [self._mongod.address]
        for member in others:
            try:
                if (await self._hello_of(member, self._timeouts.recheck_seconds)).get(SILENT_PRIMARY) == primary:
                    agreeing.append(member)
            except (BackendError, CommandError) as error:
                logger.debug("Could not ask another daemon about the primary", member=member, error=str(error))
        members, daemon = len(others) + 2, self._mirror.sidecars.get(primary)
        if 2 * len(agreeing) <= members:
            logger.info("Only a minority misses the primary's daemon", daemon=daemon, missed_by=agreeing)
            return
        logger.warning("Standing for election, since the primary's daemon does not answer", daemon=daemon)
        try:
            await self._mongod.command("admin", {"replSetStepUp": 1})
        except (BackendError, CommandError) as error:
            logger.warning("The mongod was not elected", error=str(error))


CATCH_UP_SECONDS_MAX: Final = 30

ELECTION_SECONDS: Final = 10
"""Time for which the mongod does not stand for election after others have caught up.

It suffices for the election of another member. It is short enough that a member can be elected when the daemons of a
set are restarted one after the other.
"""


async def hand_over(mirror: HelloMirror, mongod: LocalMongod, seconds: float) -> None:
    """Make the mongod step down if it is primary and another member can take over.

    Args:
        mirror: has the newest hello.
        seconds: maximum wait for another member to catch up; if none does, the mongod stays primary.
    """
    if mirror.term is None or mirror.hello is None or len(mirror.hello.get("hosts", ())) < 2:
        return
    catch_up = min(max(1, int(seconds)), CATCH_UP_SECONDS_MAX)
    command = {"replSetStepDown": catch_up + ELECTION_SECONDS, "secondaryCatchUpPeriodSecs": catch_up}
    try:
        await mongod.command("admin", command)
    except (CommandError, BackendError) as error:
        logger.warning("The mongod stays primary, although its daemon ends", error=str(error))
    else:
        logger.info("The mongod has stepped down, because its daemon ends", term=mirror.term)
