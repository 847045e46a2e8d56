"""The documents in ``config.transaction_coordinators``: what the next primary needs to finish a commit."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.config_collection import ConfigCollection
from shardwright.shardd.local_mongod.write_concern import LOCAL_WRITE_CONCERN, MAJORITY
from shardwright.shardd.two_phase_commit.commit_state import CommitState
from shardwright.shardd.two_phase_commit.decision import Commit
from shardwright.shardd.two_phase_commit.transaction_id import TransactionId
from shardwright.sharding.clock import signed_cluster_time

_COLLECTION: Final = "transaction_coordinators"


class CoordinatorDocuments:
    """The collection with the documents of all coordinators of this shard.

    All methods raise CommandError if mongod refuses or is not primary, and BackendError if it does not answer.

    Args:
        mongod: the local mongod.
    """

    def __init__(self, mongod: LocalMongod) -> None:
        self._collection = ConfigCollection(mongod, _COLLECTION)

    async def all(self) -> list[dict[str, Any]]:
        """All documents."""
        return await self._collection.all()

    async def save(self, identity: TransactionId, state: CommitState, *, is_durable: bool = True) -> None:
        """Write the document of a commit.

        Args:
            identity: the transaction.
            state: of its commit.
            is_durable: whether to return only when a majority of the set has it.
        """
        concern = MAJORITY if is_durable else LOCAL_WRITE_CONCERN
        document = {"_id": identity.to_document(), **state.to_fields()}
        await self._collection.save(document, write_concern=concern, gossip=_time_of(state))

    async def remove(self, identity: TransactionId) -> None:
        """Remove the document of a commit that has ended.

        No majority is needed: a primary that finds the document again sends the decision again, which changes nothing.
        """
        await self._collection.remove(identity.to_document(), write_concern=LOCAL_WRITE_CONCERN)


def _time_of(state: CommitState) -> Mapping[str, Any]:
    """The commit timestamp as the cluster time that mongod is given with the decision, which must not be older."""
    if isinstance(state.decision, Commit):
        return {"$clusterTime": signed_cluster_time(state.decision.timestamp)}
    return {}
