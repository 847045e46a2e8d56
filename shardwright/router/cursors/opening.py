"""Requests that open cursors on shards. They go on if nobody waits any longer, so that no cursor stays open unseen."""

from collections.abc import Callable, Iterable
from typing import Final

import trio

from shardwright.router.cursors.abandoned_operation import AbandonedOperation
from shardwright.router.cursors.operation_key import OperationKey
from shardwright.router.cursors.remote import RemoteCursor
from shardwright.router.replies.cursor_reply import CursorReply
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.shard_sender import ShardSender
from shardwright.wire.errors import CommandError
from shardwright.wire.read_preference import ReadPreference

_ABANDONED_SECONDS_MAX: Final = 60.0
"""How long the reply to an abandoned request is awaited."""

Killable = RemoteCursor | AbandonedOperation
Killer = Callable[[Iterable[Killable]], None]
"""Kills cursors and operations in the background."""


class Opening:
    """One request. `run` must be started, in a task that no client can cancel."""

    def __init__(
        self,
        sender: ShardSender,
        shard_id: str,
        frame: bytes,
        kill: Killer,
        *,
        preference: ReadPreference,
        may_repeat: bool,
    ) -> None:
        """Prepare it.

        Args:
            sender: sends requests to shards.
            shard_id: the shard.
            frame: the request; it only reads.
            kill: kills what is open for nobody.
            preference: which member may answer.
            may_repeat: the request may be sent again if a connection breaks.
        """
        self._sender = sender
        self._shard_id = shard_id
        self._frame = frame
        self._kill = kill
        self._preference = preference
        self._may_repeat = may_repeat
        self._key = OperationKey()
        self._asked: list[str] = []
        self._scope = trio.CancelScope()
        self._has_ended = trio.Event()
        self._is_abandoned = False
        self._reply: ShardReply | None = None
        self._failure: Exception | None = None

    async def run(self) -> None:
        """Send the request, and receive the reply."""
        try:
            with self._scope:
                self._reply = await self._sender.send(
                    self._shard_id,
                    self._key.added_to(self._frame),
                    preference=self._preference,
                    may_repeat=self._may_repeat,
                    on_sending=self._asked.append,
                )
        except CommandError as error:
            self._reply = ShardReply.failed(self._shard_id, error)
        except Exception as error:  # `reply` raises it
            self._failure = error
        finally:
            self._has_ended.set()
        if self._is_abandoned:
            self._end()

    async def reply(self) -> ShardReply:
        """The reply, also if it says that the request failed, or a failed one if the shard could not be reached.

        Raises:
            RemoteProtocolError: it cannot be understood.
        """
        await self._has_ended.wait()
        if self._failure is not None:
            raise self._failure
        assert self._reply is not None, "without a reply or a failure, the router is shutting down"
        return self._reply

    def abandon(self) -> None:
        """End the operation on the shard, and kill the cursor that it has opened, or opens until then."""
        self._is_abandoned = True
        self._scope.deadline = trio.current_time() + _ABANDONED_SECONDS_MAX
        self._end()

    def _end(self) -> None:
        reply = self._reply
        if reply is None:
            self._kill(AbandonedOperation(self._sender, self._shard_id, each, self._key) for each in self._asked)
        elif reply.error is None:
            self._kill([RemoteCursor.opened(self._sender, reply, CursorReply.of(reply))])
