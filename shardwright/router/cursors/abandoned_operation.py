"""An operation on a shard whose reply nobody waits for any longer."""

from dataclasses import dataclass, field

from shardwright.router.cursors.operation_key import OperationKey
from shardwright.router.sending.shard_sender import ShardSender


@dataclass(frozen=True, slots=True)
class AbandonedOperation:
    """An operation that may have opened a cursor, or will.

    Attributes:
        sender: sends requests to the shard.
        shard_id: the shard.
        address: the member that was asked.
        key: the operation's.
    """

    sender: ShardSender = field(repr=False, compare=False)
    shard_id: str
    address: str
    key: OperationKey

    @property
    def is_exhausted(self) -> bool:
        """Whether it has certainly opened no cursor."""
        return False

    def give_up(self) -> None:
        """Abandon requests that were sent in advance: there are none."""

    async def kill(self) -> None:
        """End the operation, and its cursor.

        Raises:
            BackendError: the member did not answer.
        """
        await self.sender.exchange(self.address, self.key.killing())
