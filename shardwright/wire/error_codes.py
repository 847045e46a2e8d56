"""MongoDB's published error codes: the name, the number and the categories of each.

The only table of codes in this code base. Names and numbers come from mongod 6.0.5; a test compares them with a mongod.
Categories come from ``src/mongo/base/error_codes.yml`` of MongoDB 6.0. Numbers that MongoDB uses for one assertion each
are constants next to the check that raises them. `code_name` calls them ``Location<number>``, as mongod does.
"""

from enum import Enum, IntEnum, auto
from typing import Final


class ErrorCode(IntEnum):
    """An error code, spelled as in ``codeName``."""

    OK = 0
    InternalError = 1
    BadValue = 2
    OBSOLETE_DuplicateKey = 3
    NoSuchKey = 4
    GraphContainsCycle = 5
    HostUnreachable = 6
    HostNotFound = 7
    UnknownError = 8
    FailedToParse = 9
    CannotMutateObject = 10
    UserNotFound = 11
    UnsupportedFormat = 12
    Unauthorized = 13
    TypeMismatch = 14
    Overflow = 15
    InvalidLength = 16
    ProtocolError = 17
    AuthenticationFailed = 18
    CannotReuseObject = 19
    IllegalOperation = 20
    EmptyArrayOperation = 21
    InvalidBSON = 22
    AlreadyInitialized = 23
    LockTimeout = 24
    RemoteValidationError = 25
    NamespaceNotFound = 26
    IndexNotFound = 27
    PathNotViable = 28
    NonExistentPath = 29
    InvalidPath = 30
    RoleNotFound = 31
    RolesNotRelated = 32
    PrivilegeNotFound = 33
    CannotBackfillArray = 34
    UserModificationFailed = 35
    RemoteChangeDetected = 36
    FileRenameFailed = 37
    FileNotOpen = 38
    FileStreamFailed = 39
    ConflictingUpdateOperators = 40
    FileAlreadyOpen = 41
    LogWriteFailed = 42
    CursorNotFound = 43
    UserDataInconsistent = 45
    LockBusy = 46
    NoMatchingDocument = 47
    NamespaceExists = 48
    InvalidRoleModification = 49
    MaxTimeMSExpired = 50
    ManualInterventionRequired = 51
    DollarPrefixedFieldName = 52
    InvalidIdField = 53
    NotSingleValueField = 54
    InvalidDBRef = 55
    EmptyFieldName = 56
    DottedFieldName = 57
    RoleModificationFailed = 58
    CommandNotFound = 59
    OBSOLETE_DatabaseNotFound = 60
    ShardKeyNotFound = 61
    OplogOperationUnsupported = 62
    OBSOLETE_StaleShardVersion = 63
    WriteConcernFailed = 64
    MultipleErrorsOccurred = 65
    ImmutableField = 66
    CannotCreateIndex = 67
    IndexAlreadyExists = 68
    AuthSchemaIncompatible = 69
    ShardNotFound = 70
    ReplicaSetNotFound = 71
    InvalidOptions = 72
    InvalidNamespace = 73
    NodeNotFound = 74
    WriteConcernLegacyOK = 75
    NoReplicationEnabled = 76
    OperationIncomplete = 77
    CommandResultSchemaViolation = 78
    UnknownReplWriteConcern = 79
    RoleDataInconsistent = 80
    NoMatchParseContext = 81
    NoProgressMade = 82
    RemoteResultsUnavailable = 83
    OBSOLETE_DuplicateKeyValue = 84
    IndexOptionsConflict = 85
    IndexKeySpecsConflict = 86
    CannotSplit = 87
    OBSOLETE_SplitFailed = 88
    NetworkTimeout = 89
    CallbackCanceled = 90
    ShutdownInProgress = 91
    SecondaryAheadOfPrimary = 92
    InvalidReplicaSetConfig = 93
    NotYetInitialized = 94
    NotSecondary = 95
    OperationFailed = 96
    NoProjectionFound = 97
    DBPathInUse = 98
    UnsatisfiableWriteConcern = 100
    OutdatedClient = 101
    IncompatibleAuditMetadata = 102
    NewReplicaSetConfigurationIncompatible = 103
    NodeNotElectable = 104
    IncompatibleShardingMetadata = 105
    DistributedClockSkewed = 106
    LockFailed = 107
    InconsistentReplicaSetNames = 108
    ConfigurationInProgress = 109
    CannotInitializeNodeWithData = 110
    NotExactValueField = 111
    WriteConflict = 112
    InitialSyncFailure = 113
    InitialSyncOplogSourceMissing = 114
    CommandNotSupported = 115
    DocTooLargeForCapped = 116
    ConflictingOperationInProgress = 117
    NamespaceNotSharded = 118
    InvalidSyncSource = 119
    OplogStartMissing = 120
    DocumentValidationFailure = 121
    OBSOLETE_ReadAfterOptimeTimeout = 122
    NotAReplicaSet = 123
    IncompatibleElectionProtocol = 124
    CommandFailed = 125
    RPCProtocolNegotiationFailed = 126
    UnrecoverableRollbackError = 127
    LockNotFound = 128
    LockStateChangeFailed = 129
    SymbolNotFound = 130
    OBSOLETE_ConfigServersInconsistent = 132
    FailedToSatisfyReadPreference = 133
    ReadConcernMajorityNotAvailableYet = 134
    StaleTerm = 135
    CappedPositionLost = 136
    IncompatibleShardingConfigVersion = 137
    RemoteOplogStale = 138
    JSInterpreterFailure = 139
    InvalidSSLConfiguration = 140
    SSLHandshakeFailed = 141
    JSUncatchableError = 142
    CursorInUse = 143
    IncompatibleCatalogManager = 144
    PooledConnectionsDropped = 145
    ExceededMemoryLimit = 146
    ZLibError = 147
    ReadConcernMajorityNotEnabled = 148
    NoConfigPrimary = 149
    StaleEpoch = 150
    OperationCannotBeBatched = 151
    OplogOutOfOrder = 152
    ChunkTooBig = 153
    InconsistentShardIdentity = 154
    CannotApplyOplogWhilePrimary = 155
    OBSOLETE_NeedsDocumentMove = 156
    CanRepairToDowngrade = 157
    MustUpgrade = 158
    DurationOverflow = 159
    MaxStalenessOutOfRange = 160
    IncompatibleCollationVersion = 161
    CollectionIsEmpty = 162
    ZoneStillInUse = 163
    InitialSyncActive = 164
    ViewDepthLimitExceeded = 165
    CommandNotSupportedOnView = 166
    OptionNotSupportedOnView = 167
    InvalidPipelineOperator = 168
    CommandOnShardedViewNotSupportedOnMongod = 169
    TooManyMatchingDocuments = 170
    CannotIndexParallelArrays = 171
    TransportSessionClosed = 172
    TransportSessionNotFound = 173
    TransportSessionUnknown = 174
    QueryPlanKilled = 175
    FileOpenFailed = 176
    ZoneNotFound = 177
    RangeOverlapConflict = 178
    WindowsPdhError = 179
    BadPerfCounterPath = 180
    AmbiguousIndexKeyPattern = 181
    InvalidViewDefinition = 182
    ClientMetadataMissingField = 183
    ClientMetadataAppNameTooLarge = 184
    ClientMetadataDocumentTooLarge = 185
    ClientMetadataCannotBeMutated = 186
    LinearizableReadConcernError = 187
    IncompatibleServerVersion = 188
    PrimarySteppedDown = 189
    MasterSlaveConnectionFailure = 190
    OBSOLETE_BalancerLostDistributedLock = 191
    FailPointEnabled = 192
    NoShardingEnabled = 193
    BalancerInterrupted = 194
    ViewPipelineMaxSizeExceeded = 195
    InvalidIndexSpecificationOption = 197
    OBSOLETE_ReceivedOpReplyMessage = 198
    ReplicaSetMonitorRemoved = 199
    ChunkRangeCleanupPending = 200
    CannotBuildIndexKeys = 201
    NetworkInterfaceExceededTimeLimit = 202
    ShardingStateNotInitialized = 203
    TimeProofMismatch = 204
    ClusterTimeFailsRateLimiter = 205
    NoSuchSession = 206
    InvalidUUID = 207
    TooManyLocks = 208
    StaleClusterTime = 209
    CannotVerifyAndSignLogicalTime = 210
    KeyNotFound = 211
    IncompatibleRollbackAlgorithm = 212
    DuplicateSession = 213
    AuthenticationRestrictionUnmet = 214
    DatabaseDropPending = 215
    ElectionInProgress = 216
    IncompleteTransactionHistory = 217
    UpdateOperationFailed = 218
    FTDCPathNotSet = 219
    FTDCPathAlreadySet = 220
    IndexModified = 221
    CloseChangeStream = 222
    IllegalOpMsgFlag = 223
    QueryFeatureNotAllowed = 224
    TransactionTooOld = 225
    AtomicityFailure = 226
    CannotImplicitlyCreateCollection = 227
    SessionTransferIncomplete = 228
    MustDowngrade = 229
    DNSHostNotFound = 230
    DNSProtocolError = 231
    MaxSubPipelineDepthExceeded = 232
    TooManyDocumentSequences = 233
    RetryChangeStream = 234
    InternalErrorNotSupported = 235
    ForTestingErrorExtraInfo = 236
    CursorKilled = 237
    NotImplemented = 238
    SnapshotTooOld = 239
    DNSRecordTypeMismatch = 240
    ConversionFailure = 241
    CannotCreateCollection = 242
    IncompatibleWithUpgradedServer = 243
    NOT_YET_AVAILABLE_TransactionAborted = 244
    BrokenPromise = 245
    SnapshotUnavailable = 246
    ProducerConsumerQueueBatchTooLarge = 247
    ProducerConsumerQueueEndClosed = 248
    StaleDbVersion = 249
    StaleChunkHistory = 250
    NoSuchTransaction = 251
    ReentrancyNotAllowed = 252
    FreeMonHttpInFlight = 253
    FreeMonHttpTemporaryFailure = 254
    FreeMonHttpPermanentFailure = 255
    TransactionCommitted = 256
    TransactionTooLarge = 257
    UnknownFeatureCompatibilityVersion = 258
    KeyedExecutorRetry = 259
    InvalidResumeToken = 260
    TooManyLogicalSessions = 261
    ExceededTimeLimit = 262
    OperationNotSupportedInTransaction = 263
    TooManyFilesOpen = 264
    OrphanedRangeCleanUpFailed = 265
    FailPointSetFailed = 266
    PreparedTransactionInProgress = 267
    CannotBackup = 268
    DataModifiedByRepair = 269
    RepairedReplicaSetNode = 270
    JSInterpreterFailureWithStack = 271
    MigrationConflict = 272
    ProducerConsumerQueueProducerQueueDepthExceeded = 273
    ProducerConsumerQueueConsumed = 274
    ExchangePassthrough = 275
    IndexBuildAborted = 276
    AlarmAlreadyFulfilled = 277
    UnsatisfiableCommitQuorum = 278
    ClientDisconnect = 279
    ChangeStreamFatalError = 280
    TransactionCoordinatorSteppingDown = 281
    TransactionCoordinatorReachedAbortDecision = 282
    WouldChangeOwningShard = 283
    ForTestingErrorExtraInfoWithExtraInfoInNamespace = 284
    IndexBuildAlreadyInProgress = 285
    ChangeStreamHistoryLost = 286
    TransactionCoordinatorDeadlineTaskCanceled = 287
    ChecksumMismatch = 288
    WaitForMajorityServiceEarlierOpTimeAvailable = 289
    TransactionExceededLifetimeLimitSeconds = 290
    NoQueryExecutionPlans = 291
    QueryExceededMemoryLimitNoDiskUseAllowed = 292
    InvalidSeedList = 293
    InvalidTopologyType = 294
    InvalidHeartBeatFrequency = 295
    TopologySetNameRequired = 296
    HierarchicalAcquisitionLevelViolation = 297
    InvalidServerType = 298
    OCSPCertificateStatusRevoked = 299
    RangeDeletionAbandonedBecauseCollectionWithUUIDDoesNotExist = 300
    DataCorruptionDetected = 301
    OCSPCertificateStatusUnknown = 302
    SplitHorizonChange = 303
    ShardInvalidatedForTargeting = 304
    ReadThroughCacheLookupCanceled = 306
    RangeDeletionAbandonedBecauseTaskDocumentDoesNotExist = 307
    CurrentConfigNotCommittedYet = 308
    ExhaustCommandFinished = 309
    PeriodicJobIsStopped = 310
    TransactionCoordinatorCanceled = 311
    OperationIsKilledAndDelisted = 312
    ResumableRangeDeleterDisabled = 313
    ObjectIsBusy = 314
    TooStaleToSyncFromSource = 315
    QueryTrialRunCompleted = 316
    ConnectionPoolExpired = 317
    ForTestingOptionalErrorExtraInfo = 318
    MovePrimaryInProgress = 319
    TenantMigrationConflict = 320
    TenantMigrationCommitted = 321
    APIVersionError = 322
    APIStrictError = 323
    APIDeprecationError = 324
    TenantMigrationAborted = 325
    OplogQueryMinTsMissing = 326
    NoSuchTenantMigration = 327
    TenantMigrationAccessBlockerShuttingDown = 328
    TenantMigrationInProgress = 329
    SkipCommandExecution = 330
    FailedToRunWithReplyBuilder = 331
    CannotDowngrade = 332
    ServiceExecutorInShutdown = 333
    MechanismUnavailable = 334
    TenantMigrationForgotten = 335
    TimeseriesBucketCleared = 336
    AuthenticationAbandoned = 337
    ReshardCollectionInProgress = 338
    NoSuchReshardCollection = 339
    ReshardCollectionCommitted = 340
    ReshardCollectionAborted = 341
    ReshardingCriticalSectionTimeout = 342
    ShardCannotRefreshDueToLocksHeld = 343
    AuditingNotEnabled = 344
    RuntimeAuditConfigurationNotEnabled = 345
    ChangeStreamInvalidated = 346
    APIMismatchError = 347
    ChangeStreamTopologyChange = 348
    KeyPatternShorterThanBound = 349
    ReshardCollectionTruncatedError = 350
    ChangeStreamStartAfterInvalidate = 351
    UnsupportedOpQueryCommand = 352
    NonRetryableTenantMigrationConflict = 353
    LoadBalancerSupportMismatch = 354
    InterruptedDueToStorageChange = 355
    TxnRetryCounterTooOld = 356
    InvalidBSONType = 357
    InternalTransactionNotSupported = 358
    CannotConvertIndexToUnique = 359
    ShardVersionRefreshCanceled = 360
    CollectionUUIDMismatch = 361
    FutureAlreadyRetrieved = 362
    RetryableTransactionInProgress = 363
    TxnRetryCounterNotSupported = 364
    TemporarilyUnavailable = 365
    WouldChangeOwningShardDeletedNoDocument = 366
    FLECompactionPlaceholder = 367
    FLETransactionAbort = 369
    CannotDropShardKeyIndex = 370
    UserWritesBlocked = 371
    CloseConnectionForShutdownCommand = 372
    InternalTransactionsExhaustiveFindHasMore = 373
    TransactionAPIMustRetryTransaction = 374
    TransactionAPIMustRetryCommit = 375
    FLEMaxTagLimitExceeded = 377
    DatabaseMetadataRefreshCanceled = 379
    TransactionTooLargeForCache = 388
    SocketException = 9001
    OBSOLETE_RecvStaleConfig = 9996
    CannotGrowDocumentInCappedNamespace = 10003
    LegacyNotPrimary = 10058
    NotWritablePrimary = 10107
    BSONObjectTooLarge = 10334
    DuplicateKey = 11000
    InterruptedAtShutdown = 11600
    Interrupted = 11601
    InterruptedDueToReplStateChange = 11602
    BackgroundOperationInProgressForDatabase = 12586
    BackgroundOperationInProgressForNamespace = 12587
    OBSOLETE_PrepareConfigsFailed = 13104
    MergeStageNoMatchingDocument = 13113
    DatabaseDifferCase = 13297
    StaleConfig = 13388
    NotPrimaryNoSecondaryOk = 13435
    NotPrimaryOrSecondary = 13436
    OutOfDiskSpace = 14031
    OBSOLETE_KeyTooLong = 17280
    ClientMarkedKilled = 46841
    NotARetryableWriteCommand = 50768
    BackupCursorOpenConflictWithCheckpoint = 50915
    ConfigServerUnreachable = 56846


_NAMES: Final = {code.value: code.name for code in ErrorCode}


def code_name(code: int) -> str:
    """Return ``codeName`` for a number: the published name, or ``Location<code>`` for a number without one."""
    return _NAMES.get(code) or f"Location{code}"


class Category(Enum):
    """Properties shared by groups of codes (MongoDB's ``error_categories``)."""

    RETRYABLE = auto()
    """RetriableError: a driver or a router may send the operation again, if it is retryable at all."""

    NOT_PRIMARY = auto()
    """NotPrimaryError: the node was not primary at some point of the command; a write may have happened."""

    NETWORK = auto()
    """NetworkError: communication with the other host failed."""

    NETWORK_TIMEOUT = auto()
    """NetworkTimeoutError: the other host did not answer in time."""

    INTERRUPTION = auto()
    """Interruption: the operation was stopped from outside."""

    SHUTDOWN = auto()
    """ShutdownError: the node is going away."""

    CANCELLATION = auto()
    """CancellationError: work that gets this must stop."""

    EXCEEDED_TIME_LIMIT = auto()
    """ExceededTimeLimitError: ``maxTimeMS`` or an internal deadline has passed."""

    STALE_SHARD_VERSION = auto()
    """StaleShardVersionError: the sender's routing table of a collection does not match the shard's."""

    NEED_RETARGETING = auto()
    """NeedRetargettingError: the operation must be targeted again with a fresh routing table."""

    STALE_ROUTING = auto()
    """Stale routing table or database version, which a router handles with a refresh (our union, not MongoDB's)."""

    SNAPSHOT = auto()
    """SnapshotError: a transaction cannot continue with its snapshot, but a new one may succeed."""

    CURSOR_INVALIDATED = auto()
    """CursorInvalidatedError: the cursor is gone."""

    WRITE_CONCERN = auto()
    """WriteConcernError: the write is done, but not acknowledged as widely as requested."""

    VOTE_ABORT = auto()
    """VoteAbortError: returned by ``prepareTransaction``, it forces the transaction to abort."""

    NON_RESUMABLE_CHANGE_STREAM = auto()
    """NonResumableChangeStreamError: the change stream cannot be resumed."""

    CLOSE_CONNECTION = auto()
    """CloseConnectionError: the connection is closed after the reply."""

    CONNECTION_FATAL_MESSAGE_PARSE = auto()
    """ConnectionFatalMessageParseError: the message could not be parsed; its connection is closed."""

    VERSIONED_API = auto()
    """VersionedAPIError: the ``apiVersion`` fields of the command forbid it."""

    VALIDATION = auto()
    """ValidationError: data that cannot be stored or represented."""


def has_category(code: int, category: Category) -> bool:
    """Whether ``code`` belongs to ``category``."""
    return code in _CODES[category]


def codes_of(category: Category) -> frozenset[int]:
    """Return all codes of a category."""
    return _CODES[category]


_STALE_SHARD_VERSION: Final = frozenset[int]({ErrorCode.StaleEpoch, ErrorCode.StaleConfig})

_CODES: Final[dict[Category, frozenset[int]]] = {
    Category.RETRYABLE: frozenset(
        {
            ErrorCode.HostUnreachable,
            ErrorCode.HostNotFound,
            ErrorCode.NetworkTimeout,
            ErrorCode.ShutdownInProgress,
            ErrorCode.ReadConcernMajorityNotAvailableYet,
            ErrorCode.PrimarySteppedDown,
            ErrorCode.ExceededTimeLimit,
            ErrorCode.ConnectionPoolExpired,
            ErrorCode.InternalTransactionNotSupported,
            ErrorCode.SocketException,
            ErrorCode.NotWritablePrimary,
            ErrorCode.InterruptedAtShutdown,
            ErrorCode.InterruptedDueToReplStateChange,
            ErrorCode.NotPrimaryNoSecondaryOk,
            ErrorCode.NotPrimaryOrSecondary,
            ErrorCode.BackupCursorOpenConflictWithCheckpoint,
        }
    ),
    Category.NOT_PRIMARY: frozenset(
        {
            ErrorCode.PrimarySteppedDown,
            ErrorCode.NotWritablePrimary,
            ErrorCode.InterruptedDueToReplStateChange,
            ErrorCode.NotPrimaryNoSecondaryOk,
            ErrorCode.NotPrimaryOrSecondary,
        }
    ),
    Category.NETWORK: frozenset(
        {
            ErrorCode.HostUnreachable,
            ErrorCode.HostNotFound,
            ErrorCode.NetworkTimeout,
            ErrorCode.ConnectionPoolExpired,
            ErrorCode.SocketException,
        }
    ),
    Category.NETWORK_TIMEOUT: frozenset({ErrorCode.NetworkTimeout, ErrorCode.NetworkInterfaceExceededTimeLimit}),
    Category.INTERRUPTION: frozenset(
        {
            ErrorCode.LockTimeout,
            ErrorCode.MaxTimeMSExpired,
            ErrorCode.CursorKilled,
            ErrorCode.ExceededTimeLimit,
            ErrorCode.ClientDisconnect,
            ErrorCode.TransactionCoordinatorSteppingDown,
            ErrorCode.TransactionCoordinatorReachedAbortDecision,
            ErrorCode.TransactionExceededLifetimeLimitSeconds,
            ErrorCode.InterruptedDueToStorageChange,
            ErrorCode.InterruptedAtShutdown,
            ErrorCode.Interrupted,
            ErrorCode.InterruptedDueToReplStateChange,
            ErrorCode.ClientMarkedKilled,
        }
    ),
    Category.SHUTDOWN: frozenset(
        {ErrorCode.ShutdownInProgress, ErrorCode.ServiceExecutorInShutdown, ErrorCode.InterruptedAtShutdown}
    ),
    Category.CANCELLATION: frozenset(
        {
            ErrorCode.CallbackCanceled,
            ErrorCode.ShutdownInProgress,
            ErrorCode.PeriodicJobIsStopped,
            ErrorCode.OperationIsKilledAndDelisted,
            ErrorCode.ServiceExecutorInShutdown,
            ErrorCode.InterruptedDueToStorageChange,
            ErrorCode.InterruptedAtShutdown,
            ErrorCode.ClientMarkedKilled,
        }
    ),
    Category.EXCEEDED_TIME_LIMIT: frozenset(
        {
            ErrorCode.MaxTimeMSExpired,
            ErrorCode.NetworkInterfaceExceededTimeLimit,
            ErrorCode.ExceededTimeLimit,
            ErrorCode.TransactionExceededLifetimeLimitSeconds,
        }
    ),
    Category.STALE_SHARD_VERSION: _STALE_SHARD_VERSION,
    Category.NEED_RETARGETING: _STALE_SHARD_VERSION,
    Category.STALE_ROUTING: _STALE_SHARD_VERSION | {ErrorCode.StaleDbVersion},
    Category.SNAPSHOT: frozenset(
        {
            ErrorCode.SnapshotTooOld,
            ErrorCode.SnapshotUnavailable,
            ErrorCode.StaleChunkHistory,
            ErrorCode.MigrationConflict,
        }
    ),
    Category.CURSOR_INVALIDATED: frozenset(
        {ErrorCode.CursorNotFound, ErrorCode.OperationFailed, ErrorCode.QueryPlanKilled, ErrorCode.CursorKilled}
    ),
    Category.WRITE_CONCERN: frozenset(
        {
            ErrorCode.WriteConcernFailed,
            ErrorCode.WriteConcernLegacyOK,
            ErrorCode.UnknownReplWriteConcern,
            ErrorCode.UnsatisfiableWriteConcern,
        }
    ),
    Category.VOTE_ABORT: frozenset(
        {
            ErrorCode.ReadConcernMajorityNotEnabled,
            ErrorCode.TransactionTooOld,
            ErrorCode.NoSuchTransaction,
            ErrorCode.OperationNotSupportedInTransaction,
            ErrorCode.APIMismatchError,
            ErrorCode.TxnRetryCounterTooOld,
        }
    ),
    Category.NON_RESUMABLE_CHANGE_STREAM: frozenset(
        {ErrorCode.ChangeStreamFatalError, ErrorCode.ChangeStreamHistoryLost}
    ),
    Category.CLOSE_CONNECTION: frozenset(
        {
            ErrorCode.SplitHorizonChange,
            ErrorCode.LoadBalancerSupportMismatch,
            ErrorCode.CloseConnectionForShutdownCommand,
        }
    ),
    Category.CONNECTION_FATAL_MESSAGE_PARSE: frozenset(
        {ErrorCode.IllegalOpMsgFlag, ErrorCode.TooManyDocumentSequences, ErrorCode.ChecksumMismatch}
    ),
    Category.VERSIONED_API: frozenset(
        {
            ErrorCode.APIVersionError,
            ErrorCode.APIStrictError,
            ErrorCode.APIDeprecationError,
            ErrorCode.APIMismatchError,
        }
    ),
    Category.VALIDATION: frozenset({ErrorCode.Overflow, ErrorCode.InvalidBSON}),
}
