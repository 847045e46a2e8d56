"""The shard daemon's fail points, with MongoDB's names for equivalent ones."""

from typing import Final, NamedTuple

DONOR: Final = tuple(f"moveChunkHangAtStep{step}" for step in range(1, 7))
"""The donor waits after the step with that number."""

RECIPIENT: Final = tuple(f"migrateThreadHangAtStep{step}" for step in range(1, 8))
"""The recipient waits after the step with that number."""

HANG_AFTER_BLOCKING_WRITES: Final = "hangAfterBlockingWrites"
"""The donor waits at the beginning of its critical section, before it requests the recipient's commit."""

HANG_BEFORE_LEAVING_CRITICAL_SECTION: Final = "hangBeforeLeavingCriticalSection"
"""The donor waits between the commit on the config servers and the end of its critical section."""

FAIL_MIGRATION_COMMIT: Final = "failMigrationCommit"
"""The donor treats the recipient's final catch-up as failed."""

MIGRATION_COMMIT_VERSION_ERROR: Final = "migrationCommitVersionError"
"""The commit is refused as if the config servers had another incarnation of the collection."""

MIGRATION_COMMIT_NETWORK_ERROR: Final = "migrationCommitNetworkError"
"""The commit succeeds, but its reply is lost."""

COMMIT: Final = (
    HANG_AFTER_BLOCKING_WRITES,
    HANG_BEFORE_LEAVING_CRITICAL_SECTION,
    FAIL_MIGRATION_COMMIT,
    MIGRATION_COMMIT_VERSION_ERROR,
    MIGRATION_COMMIT_NETWORK_ERROR,
)


class CompletionPlaces(NamedTuple):
    """Fail points at which the donor waits while it completes a decided migration, in this order.

    Attributes:
        before_making_decision_durable: the critical section is over, but the decision is not persisted.
        before_sending_decision: the decision is persisted and applied to the donor's range deletion.
        before_forgetting_migration: the recipient has the decision too.
    """

    before_making_decision_durable: str
    before_sending_decision: str
    before_forgetting_migration: str


AFTER_COMMIT: Final = CompletionPlaces(
    "hangBeforeMakingCommitDecisionDurable",
    "hangBeforeSendingCommitDecision",
    "hangBeforeForgettingMigrationAfterCommitDecision",
)
AFTER_ABORT: Final = CompletionPlaces(
    "hangBeforeMakingAbortDecisionDurable",
    "hangBeforeSendingAbortDecision",
    "hangBeforeForgettingMigrationAfterAbortDecision",
)

FAIL_MIGRATION_RECEIVED_OUT_OF_RANGE_OPERATION: Final = "failMigrationReceivedOutOfRangeOperation"
"""A modification of a document outside the range fails the migration, rather than being ignored."""

MIGRATION_RECIPIENT_FAIL_POST_COMMIT_REFRESH: Final = "migrationRecipientFailPostCommitRefresh"
"""The recipient leaves its critical section without a refresh."""

RECIPIENT_FAILURES: Final = (
    FAIL_MIGRATION_RECEIVED_OUT_OF_RANGE_OPERATION,
    MIGRATION_RECIPIENT_FAIL_POST_COMMIT_REFRESH,
)

SUSPEND_RANGE_DELETION: Final = "suspendRangeDeletion"
"""A range deletion waits before the delay."""

HANG_BEFORE_DOING_DELETION: Final = "hangBeforeDoingDeletion"
HANG_AFTER_DOING_DELETION: Final = "hangAfterDoingDeletion"
"""A range deletion waits before the first batch, or after each batch."""

RANGE_DELETER: Final = (SUSPEND_RANGE_DELETION, HANG_BEFORE_DOING_DELETION, HANG_AFTER_DOING_DELETION)

LOSE_MIGRATE_CLONE_REPLY: Final = "loseMigrateCloneReply"
LOSE_TRANSFER_MODS_REPLY: Final = "loseTransferModsReply"
"""The donor closes the connection instead of sending a prepared batch."""

SOURCE: Final = (LOSE_MIGRATE_CLONE_REPLY, LOSE_TRANSFER_MODS_REPLY)

HANG_BEFORE_WRITING_PARTICIPANT_LIST: Final = "hangBeforeWritingParticipantList"
HANG_BEFORE_WAITING_FOR_PARTICIPANT_LIST_WRITE_CONCERN: Final = "hangBeforeWaitingForParticipantListWriteConcern"
HANG_BEFORE_SENDING_PREPARE: Final = "hangBeforeSendingPrepare"
"""A transaction coordinator waits here once for each participant; at the other places, once."""

HANG_BEFORE_WRITING_DECISION: Final = "hangBeforeWritingDecision"
HANG_BEFORE_WAITING_FOR_DECISION_WRITE_CONCERN: Final = "hangBeforeWaitingForDecisionWriteConcern"
HANG_BEFORE_SENDING_COMMIT: Final = "hangBeforeSendingCommit"
HANG_BEFORE_SENDING_ABORT: Final = "hangBeforeSendingAbort"
HANG_BEFORE_DELETING_COORDINATOR_DOC: Final = "hangBeforeDeletingCoordinatorDoc"
HANG_AFTER_DELETING_COORDINATOR_DOC: Final = "hangAfterDeletingCoordinatorDoc"

TWO_PHASE_COMMIT: Final = (
    HANG_BEFORE_WRITING_PARTICIPANT_LIST,
    HANG_BEFORE_WAITING_FOR_PARTICIPANT_LIST_WRITE_CONCERN,
    HANG_BEFORE_SENDING_PREPARE,
    HANG_BEFORE_WRITING_DECISION,
    HANG_BEFORE_WAITING_FOR_DECISION_WRITE_CONCERN,
    HANG_BEFORE_SENDING_COMMIT,
    HANG_BEFORE_SENDING_ABORT,
    HANG_BEFORE_DELETING_COORDINATOR_DOC,
    HANG_AFTER_DELETING_COORDINATOR_DOC,
)
"""A transaction coordinator waits at the place in the name."""

RESHARDING_PAUSE_RECIPIENT_BEFORE_CLONING: Final = "reshardingPauseRecipientBeforeCloning"
RESHARDING_PAUSE_RECIPIENT_DURING_CLONING: Final = "reshardingPauseRecipientDuringCloning"
RESHARDING_PAUSE_RECIPIENT_DURING_OPLOG_APPLICATION: Final = "reshardingPauseRecipientDuringOplogApplication"
"""A recipient waits before it creates the collection, before each batch of documents, before each batch of changes."""

RESHARDING_PAUSE_BEFORE_BLOCKING_WRITES: Final = "reshardingPauseBeforeBlockingWrites"
RESHARDING_PAUSE_BEFORE_HOLD: Final = "reshardingPauseBeforeHold"
RESHARDING_PAUSE_BEFORE_COMMIT: Final = "reshardingPauseBeforeCommit"
RESHARDING_PAUSE_AFTER_COMMIT: Final = "reshardingPauseAfterCommit"
"""A participant waits before it blocks writes, before it blocks reads, and before and after it replaces its part."""

RESHARDING: Final = (
    RESHARDING_PAUSE_RECIPIENT_BEFORE_CLONING,
    RESHARDING_PAUSE_RECIPIENT_DURING_CLONING,
    RESHARDING_PAUSE_RECIPIENT_DURING_OPLOG_APPLICATION,
    RESHARDING_PAUSE_BEFORE_BLOCKING_WRITES,
    RESHARDING_PAUSE_BEFORE_HOLD,
    RESHARDING_PAUSE_BEFORE_COMMIT,
    RESHARDING_PAUSE_AFTER_COMMIT,
)

HANG_IN_DDL_COORDINATOR: Final = "hangInDDLCoordinator"
"""A DDL coordinator waits at a place.

The data selects an ``operationType`` and the place ``at``: ``begin`` with the locks held; the name of a phase after
that phase was persisted; ``end`` before the document is removed. A missing field matches any.
"""

MOVE_PRIMARY_HANG_BEFORE_CLONE: Final = "movePrimaryHangBeforeClone"
MOVE_PRIMARY_HANG_BEFORE_CRITICAL_SECTION: Final = "movePrimaryHangBeforeCriticalSection"
MOVE_PRIMARY_HANG_IN_CRITICAL_SECTION: Final = "movePrimaryHangInCriticalSection"
"""The donor of a database waits while it copies.

The places are after the first write of its document, when the copy is steady, and in the critical section. The last one
has the copy complete, but its phase not persisted.
"""

MOVE_PRIMARY_HANG_BEFORE_COMMIT: Final = "movePrimaryHangBeforeCommit"
MOVE_PRIMARY_HANG_AFTER_COMMIT: Final = "movePrimaryHangAfterCommit"
MOVE_PRIMARY_HANG_BEFORE_DROPPING: Final = "movePrimaryHangBeforeDropping"
MOVE_PRIMARY_HANG_BEFORE_ABORTING: Final = "movePrimaryHangBeforeAborting"
"""The donor of a database waits while it commits or aborts.

The places are before the commit with its phase persisted, and after the commit within the critical section. The other
two are before it drops its former collections, and before it requests the drop of the copies.
"""

MOVE_PRIMARY_RECIPIENT_HANG_BEFORE_CLONE: Final = "movePrimaryRecipientHangBeforeClone"
"""The recipient of a database waits before it clones the collections of a round."""

MOVE_PRIMARY: Final = (
    MOVE_PRIMARY_HANG_BEFORE_CLONE,
    MOVE_PRIMARY_HANG_BEFORE_CRITICAL_SECTION,
    MOVE_PRIMARY_HANG_IN_CRITICAL_SECTION,
    MOVE_PRIMARY_HANG_BEFORE_COMMIT,
    MOVE_PRIMARY_HANG_AFTER_COMMIT,
    MOVE_PRIMARY_HANG_BEFORE_DROPPING,
    MOVE_PRIMARY_HANG_BEFORE_ABORTING,
    MOVE_PRIMARY_RECIPIENT_HANG_BEFORE_CLONE,
)

FAIL_POINT_NAMES: Final = frozenset(
    (
        *(*DONOR, *COMMIT, *AFTER_COMMIT, *AFTER_ABORT, *RECIPIENT, *RECIPIENT_FAILURES, *RANGE_DELETER, *SOURCE),
        *(*TWO_PHASE_COMMIT, *RESHARDING, HANG_IN_DDL_COORDINATOR, *MOVE_PRIMARY),
    )
)
