"""Cluster times that clients gossip. The router advances its clock only to times that the cluster has signed.

This is a genuine cluster's behaviour with authentication on, for clients without the privilege to advance the clock.
Without authentication, a genuine cluster signs nothing and accepts every time. A single broken client can then
permanently advance the cluster's clock by a year.
"""

from collections.abc import Awaitable, Callable
from time import time

from shardwright.sharding.clock import CLUSTER_TIME, VectorClock
from shardwright.sharding.cluster_time import DUMMY_KEY_ID, ReceivedTime, TimeSigner
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import Span
from shardwright.wire.request import Request
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

logger = get_logger("router.clock")


class ClientTimes:
    """Checks times that are ahead of the router's clock.

    Args:
        wall_clock: returns the seconds since 1970.
    """

    def __init__(
        self,
        clock: VectorClock,
        signer: TimeSigner,
        refresh_keys: Callable[[], Awaitable[None]],
        drift_seconds_max: int,
        wall_clock: Callable[[], float] = time,
    ) -> None:
        self._clock = clock
        self._signer = signer
        self._refresh_keys = refresh_keys
        self._drift_seconds_max = drift_seconds_max
        self._wall_clock = wall_clock

    @may_run_in_reactor
    async def exchange(
        self, request: Request, span: Span, user_may_advance: Callable[[], Awaitable[bool]] | None = None
    ) -> Request:
        """Advance the clock to the ``$clusterTime`` of a request, or the request's to the clock's.

        If a user has logged in, an unsigned time is an error. Otherwise it is ignored and not forwarded, as a genuine
        cluster treats an unauthenticated client. Without access control, clients may have received unsigned times from
        the handshake of a router that had no keys yet.

        Args:
            span: the position of its ``$clusterTime``.
            user_may_advance: whether the authenticated user may advance the clock without a signature; None before
                authentication.

        Returns:
            The request for the shards.

        Raises:
            CommandError: TimeProofMismatch, KeyNotFound or ClusterTimeFailsRateLimiter; the field is malformed.
        """
        own = ReceivedTime.read_own(request.body, span, self._signer)
        received = own or ReceivedTime.read(request.body, span)
        if received.time <= self._clock.time.cluster_time:
            self._clock.set_in(request, span)
            return request
        if own is None:
            if user_may_advance is None and received.is_unsigned:
                return request.without((CLUSTER_TIME,))
            await in_own_task()
            if user_may_advance is None or not await user_may_advance():
                await self._check_signed(received)
        received.check_near(int(self._wall_clock()), self._drift_seconds_max)
        self._clock.observe_cluster_time(received.time)
        return request

    @may_run_in_reactor
    async def _check_signed(self, received: ReceivedTime) -> None:
        key = self._signer.keys.find(received.key_id, received.time)
        if key is None and received.key_id != DUMMY_KEY_ID:
            await self.look_up_keys()
            key = self._signer.keys.find(received.key_id, received.time)
        received.check_signed(key)

    @may_run_in_reactor
    async def look_up_keys(self) -> None:
        """Read the signing keys again, if the config servers respond."""
        await in_own_task()
        try:
            await self._refresh_keys()
        except CommandError as error:
            logger.warning("Could not read the signing keys", error=str(error))
