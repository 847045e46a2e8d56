"""Commands of a coordinator to one participant, which may be this shard itself."""

from collections.abc import Mapping
from typing import Any, Final

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.shardd.context.other_shards import send_to_shard
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.write_concern import LOCAL_WRITE_CONCERN, MAJORITY
from shardwright.shardd.two_phase_commit.decision import Commit, Decision
from shardwright.shardd.two_phase_commit.participant_answers import Vote, is_acknowledged, vote_of
from shardwright.shardd.two_phase_commit.transaction_id import TransactionId
from shardwright.sharding.commit_protocol import COORDINATED_BY
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import Logger

RETRY_SECONDS: Final = 0.1
"""The longest pause before a command is sent to a participant again; it doubles each time."""

RETRY_SECONDS_MAX: Final = 5.0
"""The longest pause before a command is sent again."""

Answer = Mapping[str, Any] | CommandError


class ParticipantLink:
    """A participant as its coordinator sees it.

    Args:
        context: this shard daemon's context.
        identity: the transaction.
        shard: the participant's shard id.
        logger: has the fields of the transaction.
    """

    def __init__(self, context: ShardContext, identity: TransactionId, shard: str, logger: Logger) -> None:
        self._context = context
        self._shard = shard
        self._logger = logger.bind(shard=shard)
        coordinator = context.require_identity().shard_name
        self._fields: Mapping[str, Any] = {
            **identity.to_document(),
            "autocommit": False,
            COORDINATED_BY.decode(): coordinator,
        }

    async def vote(self) -> Vote:
        """Have the participant prepare; returns its vote, however long that takes."""
        backoff, is_repeated = Backoff(RETRY_SECONDS, RETRY_SECONDS_MAX), False
        while True:
            answer = await self._send({"prepareTransaction": 1}, is_repeated=is_repeated)
            vote = vote_of(self._shard, answer)
            if vote is not None:
                return vote
            await self._pause("prepareTransaction", answer, backoff)
            is_repeated = True

    async def tell(self, decision: Decision) -> None:
        """Have the participant execute a decision; returns when it has, however long that takes."""
        command = _commit(decision) if isinstance(decision, Commit) else {"abortTransaction": 1}
        backoff, is_repeated = Backoff(RETRY_SECONDS, RETRY_SECONDS_MAX), False
        while True:
            answer = await self._send(command, is_repeated=is_repeated)
            if is_acknowledged(decision, answer):
                return
            await self._pause(next(iter(command)), answer, backoff)
            is_repeated = True

    async def commit_ahead(self, decision: Commit) -> None:
        """Have the participant commit before `tell`, which waits until it has, and for a majority."""
        await self._send(_commit(decision), is_repeated=False, write_concern=LOCAL_WRITE_CONCERN)

    async def _send(
        self, command: Mapping[str, Any], *, is_repeated: bool, write_concern: Mapping[str, Any] = MAJORITY
    ) -> Answer:
        request = {**command, **self._fields, "writeConcern": write_concern}
        try:
            # A shard that does not answer may have moved to other hosts, or be gone.
            return await send_to_shard(self._context, self._shard, "admin", request, may_be_cached=not is_repeated)
        except CommandError as error:
            return error

    async def _pause(self, command: str, answer: Answer, backoff: Backoff) -> None:
        pause = backoff.next_seconds()
        self._logger.warning(
            "Repeating a command of a two-phase commit",
            command=command,
            answer=str(answer if isinstance(answer, CommandError) else answer.get("writeConcernError", answer)),
            retry_seconds=round(pause, 3),
        )
        await trio.sleep(pause)


def _commit(decision: Commit) -> dict[str, Any]:
    return {"commitTransaction": 1, "commitTimestamp": decision.timestamp}
