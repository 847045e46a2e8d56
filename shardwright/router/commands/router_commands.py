"""The table of the commands that the router runs for clients, and the commands about the table.

``listCommands`` shows the table, and the generic argument ``help: true`` shows one entry. Routers refuse some commands
of mongods with an error of their own.
"""

from typing import Final

from shardwright.daemon.certificates import ROTATE_CERTIFICATES
from shardwright.daemon.command_table import CommandTable
from shardwright.router.commands import (
    administration,
    aggregations,
    authentication,
    check_metadata_consistency,
    chunks,
    cluster,
    collections,
    current_op,
    cursors,
    databases,
    explain,
    hello,
    indexes,
    legacy_commands,
    map_reduce,
    parameters,
    server_status,
    sessions,
    sharding,
    testing,
    transactions,
    users,
    writes,
)
from shardwright.router.operations.operation import Operation, RouterCommand
from shardwright.router.replies.reply_builder import PlainError, Reply
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.reactor import may_run_in_reactor

_SHOWN_WITHOUT_AUTHENTICATION: Final = frozenset(
    {
        *(
            "_isSelf",
            "buildInfo",
            "configureFailPoint",
            "connectionStatus",
            "echo",
            "getLastError",
            "getnonce",
            "hello",
        ),
        *("isMaster", "isdbgrid", "listCommands", "ping", "refreshLogicalSessionCacheNow", "waitForFailPoint"),
        *("authenticate", "saslContinue", "saslStart", "testDeprecation", "whatsmyuri"),
    }
)
"""Commands that MongoDB runs before authentication. Here the test commands among them require a log-in."""


async def list_commands(operation: Operation) -> Reply:
    """All commands of this router."""
    commands: CommandTable[RouterCommand] = operation.context.commands
    return {
        "commands": {
            entry.name: {
                "help": entry.help,
                "requiresAuth": entry.name not in _SHOWN_WITHOUT_AUTHENTICATION,
                "secondaryOk": entry.reads,
                "adminOnly": entry.admin_only,
                "apiVersions": list(entry.api_versions),
                "deprecatedApiVersions": list(entry.deprecated_api_versions),
            }
            for entry in sorted(commands, key=lambda entry: entry.name)
        }
    }


async def repl_set_get_status(operation: Operation) -> Reply:
    """Refused by routers; shells use the error to recognize one."""
    raise _ForMongodError("replSetGetStatus is not supported through mongos")


async def compact(operation: Operation) -> Reply:
    """Not for routers."""
    raise CommandError(ErrorCode.CommandNotSupported, "compact not allowed through mongos")


async def set_free_monitoring(operation: Operation) -> Reply:
    """Not for routers."""
    raise CommandError(ErrorCode.CommandFailed, "Free Monitoring commands are not supported on mongos")


class _ForMongodError(PlainError):
    """Carries ``info: "mongos"``, by which clients recognize a router."""

    def reply(self) -> dict[str, object]:
        """Return the body of the reply."""
        return {"info": "mongos", **super().reply()}


@may_run_in_reactor
async def help_if_asked(operation: Operation, command: RouterCommand) -> bytes | None:
    """Describe a command if its field ``help`` is true by MongoDB's rules for values of any type."""
    value = operation.request.get(b"help")
    if value is None or value is False or value == 0:
        return None
    return operation.framed({"help": f"help for: {command.name} {command.help}"})


# fmt: off
ROUTER_COMMANDS: Final = CommandTable(
    (
        # administration
        RouterCommand("logRotate", administration.log_rotate, admin_only=True),
        RouterCommand(ROTATE_CERTIFICATES, administration.rotate, admin_only=True, arguments=("message",)),
        RouterCommand("shutdown", administration.shutdown, admin_only=True, arguments=("force", "timeoutSecs")),
        RouterCommand("fsync", administration.fsync, admin_only=True),
        RouterCommand("appendOplogNote", administration.append_oplog_note, admin_only=True,
            supports_write_concern=True),
        RouterCommand("multicast", administration.multicast, admin_only=True, test_only=True),
        RouterCommand("planCacheClear", administration.plan_cache_clear),
        RouterCommand("planCacheListFilters", administration.plan_cache_list_filters, reads=True),
        RouterCommand("planCacheSetFilter", administration.plan_cache_set_filter),
        RouterCommand("planCacheClearFilters", administration.plan_cache_clear_filters),
        # aggregations
        RouterCommand("aggregate", aggregations.aggregate, reads=True, api_versions=("1",), begins_in_reactor=True,
            supports_write_concern=True),
        RouterCommand("count", aggregations.count, reads=True, api_versions=("1",)),
        RouterCommand("distinct", aggregations.distinct, reads=True),
        # authentication
        RouterCommand("saslStart", authentication.sasl_start, api_versions=("1",),
            arguments=("mechanism", "payload", "autoAuthorize", "options")),
        RouterCommand("saslContinue", authentication.sasl_continue, api_versions=("1",),
            arguments=("conversationId", "payload")),
        RouterCommand("authenticate", authentication.authenticate, api_versions=("1",),
            arguments=("mechanism", "user", "nonce", "key")),
        RouterCommand("logout", authentication.logout, arguments=()),
        RouterCommand("connectionStatus", authentication.connection_status, arguments=("showPrivileges",)),
        # check_metadata_consistency
        RouterCommand("checkMetadataConsistency", check_metadata_consistency.check_metadata_consistency, reads=True),
        # chunks
        RouterCommand("split", chunks.split, admin_only=True),
        RouterCommand("mergeChunks", chunks.merge_chunks, admin_only=True),
        RouterCommand("moveChunk", chunks.move_chunk, aliases=("movechunk",), admin_only=True,
            supports_write_concern=True),
        RouterCommand("moveRange", chunks.move_range, admin_only=True, supports_write_concern=True),
        RouterCommand("setAllowMigrations", chunks.set_allow_migrations, admin_only=True, supports_write_concern=True),
        RouterCommand("splitVector", chunks.split_vector_unsharded),
        # cluster
        RouterCommand("addShard", cluster.add_shard, aliases=("addshard",), admin_only=True,
            supports_write_concern=True),
        RouterCommand("removeShard", cluster.remove_shard, aliases=("removeshard",), admin_only=True,
            supports_write_concern=True),
        RouterCommand("listShards", cluster.list_shards, admin_only=True, reads=True),
        RouterCommand("addShardToZone", cluster.add_shard_to_zone, admin_only=True, supports_write_concern=True),
        RouterCommand("removeShardFromZone", cluster.remove_shard_from_zone, admin_only=True,
            supports_write_concern=True),
        RouterCommand("updateZoneKeyRange", cluster.update_zone_key_range, admin_only=True,
            supports_write_concern=True),
        RouterCommand("getShardMap", cluster.get_shard_map, admin_only=True, reads=True),
        RouterCommand("getShardVersion", cluster.get_shard_version, aliases=("getshardversion",), admin_only=True,
            reads=True),
        RouterCommand("flushRouterConfig", cluster.flush_router_config, aliases=("flushrouterconfig",),
            admin_only=True),
        RouterCommand("balancerStart", cluster.balancer_start, admin_only=True),
        RouterCommand("balancerStop", cluster.balancer_stop, admin_only=True),
        RouterCommand("balancerStatus", cluster.balancer_status, admin_only=True, reads=True),
        RouterCommand("balancerExplain", cluster.balancer_explain, admin_only=True, reads=True),
        RouterCommand("balancerCollectionStatus", cluster.balancer_collection_status, admin_only=True, reads=True),
        RouterCommand("configureCollectionBalancing", cluster.configure_collection_balancing, admin_only=True),
        RouterCommand("clearJumboFlag", cluster.clear_jumbo_flag, admin_only=True),
        # collections
        RouterCommand("create", collections.create, api_versions=("1",), supports_write_concern=True),
        RouterCommand("drop", collections.drop, api_versions=("1",), supports_write_concern=True,
            arguments=("collectionUUID",)),
        RouterCommand("collMod", collections.coll_mod, api_versions=("1",), supports_write_concern=True,
            arguments=collections.COLL_MOD_ARGUMENTS),
        RouterCommand("convertToCapped", collections.convert_to_capped, supports_write_concern=True),
        RouterCommand("renameCollection", collections.rename_collection, admin_only=True, supports_write_concern=True,
            arguments=("to", "dropTarget", "stayTemp", "collectionUUID")),
        RouterCommand("validate", collections.validate, reads=True),
        RouterCommand("validateDBMetadata", collections.validate_db_metadata, reads=True),
        RouterCommand("listCollections", collections.list_collections, reads=True, api_versions=("1",)),
        RouterCommand("compactStructuredEncryptionData", collections.compact_structured_encryption_data),
        # current_op
        RouterCommand("_killOperations", current_op.kill_operations, admin_only=True, arguments=("operationKeys",)),
        RouterCommand("currentOp", current_op.current_op, admin_only=True, reads=True),
        RouterCommand("killOp", current_op.kill_op, admin_only=True),
        # cursors
        RouterCommand("find", cursors.find, reads=True, api_versions=("1",), begins_in_reactor=True),
        RouterCommand("getMore", cursors.get_more, reads=True, deadline_from_max_time=False, api_versions=("1",)),
        RouterCommand("killCursors", cursors.kill_cursors, api_versions=("1",), arguments=("cursors",)),
        # databases
        RouterCommand("listDatabases", databases.list_databases, aliases=("listdatabases",), admin_only=True,
            reads=True, api_versions=("1",)),
        RouterCommand("dropDatabase", databases.drop_database, api_versions=("1",), supports_write_concern=True,
            arguments=()),
        RouterCommand("movePrimary", databases.move_primary, aliases=("moveprimary",), admin_only=True,
            supports_write_concern=True),
        RouterCommand("collStats", databases.coll_stats, aliases=("collstats",), reads=True),
        RouterCommand("dataSize", databases.data_size, aliases=("datasize",), reads=True),
        RouterCommand("dbStats", databases.db_stats, aliases=("dbstats",), reads=True),
        # explain
        RouterCommand("explain", explain.explain, reads=True, api_versions=("1",)),
        # file_md5
        RouterCommand("filemd5", legacy_commands.file_md5, reads=True),
        # hello
        RouterCommand("hello", hello.hello, deadline_from_max_time=False, api_versions=("1",)),
        RouterCommand("isMaster", hello.hello, aliases=("ismaster",), deadline_from_max_time=False),
        RouterCommand("isdbgrid", hello.isdbgrid),
        RouterCommand("ping", hello.ping, api_versions=("1",), arguments=()),
        RouterCommand("buildInfo", hello.build_info, aliases=("buildinfo",)),
        RouterCommand("whatsmyuri", hello.whats_my_uri),
        RouterCommand("echo", hello.echo, test_only=True),
        RouterCommand("hostInfo", hello.host_info, arguments=()),
        # indexes
        RouterCommand("dropIndexes", indexes.drop_indexes, aliases=("deleteIndexes",), api_versions=("1",),
            supports_write_concern=True, arguments=("index", "collectionUUID")),
        RouterCommand("listIndexes", indexes.list_indexes, reads=True, api_versions=("1",)),
        RouterCommand("setIndexCommitQuorum", indexes.set_index_commit_quorum, supports_write_concern=True),
        RouterCommand("createIndexes", indexes.create_indexes, api_versions=("1",), supports_write_concern=True),
        # legacy_commands
        RouterCommand("getLastError", legacy_commands.get_last_error, aliases=("getlasterror",)),
        RouterCommand("availableQueryOptions", legacy_commands.available_query_options,
            aliases=("availablequeryoptions",)),
        RouterCommand("_isSelf", legacy_commands.is_self),
        RouterCommand("netstat", legacy_commands.netstat, admin_only=True),
        RouterCommand("connPoolSync", legacy_commands.conn_pool_sync, aliases=("connpoolsync",)),
        RouterCommand("reapLogicalSessionCacheNow", legacy_commands.reap_logical_session_cache_now, test_only=True),
        RouterCommand("clearLog", legacy_commands.clear_log, admin_only=True, test_only=True, arguments=()),
        RouterCommand("features", legacy_commands.features, arguments=("oidReset",)),
        RouterCommand("startRecordingTraffic", legacy_commands.start_recording_traffic,
            arguments=("filename", "bufferSize", "maxFileSize")),
        RouterCommand("stopRecordingTraffic", legacy_commands.stop_recording_traffic, arguments=()),
        # list_commands
        RouterCommand("listCommands", list_commands),
        RouterCommand("replSetGetStatus", repl_set_get_status, admin_only=True),
        RouterCommand("compact", compact),
        RouterCommand("setFreeMonitoring", set_free_monitoring, admin_only=True),
        # map_reduce
        RouterCommand("mapReduce", map_reduce.map_reduce, aliases=("mapreduce",), supports_write_concern=True),
        # parameters
        RouterCommand("getParameter", parameters.get_parameter, admin_only=True),
        RouterCommand("setParameter", parameters.set_parameter, admin_only=True),
        RouterCommand("getCmdLineOpts", parameters.get_command_line_options, admin_only=True, arguments=()),
        RouterCommand("getLog", parameters.get_log, admin_only=True, arguments=()),
        RouterCommand("getClusterParameter", parameters.get_cluster_parameter, admin_only=True, reads=True),
        RouterCommand("setClusterParameter", parameters.set_cluster_parameter, admin_only=True),
        RouterCommand("setUserWriteBlockMode", parameters.set_user_write_block_mode, arguments=("global",)),
        RouterCommand("setFeatureCompatibilityVersion", parameters.set_feature_compatibility_version, admin_only=True,
            supports_write_concern=True, arguments=("confirm",)),
        RouterCommand("finishUpgrade", parameters.finish_upgrade, admin_only=True, supports_write_concern=True,
            arguments=("dryRun",)),
        RouterCommand("getDefaultRWConcern", parameters.get_default_rw_concern, admin_only=True, reads=True,
            arguments=("inMemory",)),
        RouterCommand("setDefaultRWConcern", parameters.set_default_rw_concern, admin_only=True,
            supports_write_concern=True, arguments=("defaultReadConcern", "defaultWriteConcern")),
        RouterCommand("profile", parameters.profile),
        RouterCommand("setProfilingFilterGlobally", parameters.set_profiling_filter_globally),
        # server_status
        RouterCommand("connPoolStats", server_status.conn_pool_stats, aliases=("connpoolstats",)),
        RouterCommand("dropConnections", server_status.drop_connections, admin_only=True, arguments=("hostAndPort",)),
        RouterCommand("serverStatus", server_status.server_status),
        RouterCommand("getDiagnosticData", server_status.get_diagnostic_data, admin_only=True),
        # sessions
        RouterCommand("startSession", sessions.start_session),
        RouterCommand("refreshSessions", sessions.refresh_sessions, api_versions=("1",), arguments=()),
        RouterCommand("endSessions", sessions.end_sessions, api_versions=("1",), arguments=()),
        RouterCommand("refreshLogicalSessionCacheNow", sessions.refresh_logical_session_cache_now, test_only=True),
        RouterCommand("killSessions", sessions.kill_sessions),
        RouterCommand("killAllSessions", sessions.kill_all_sessions),
        RouterCommand("killAllSessionsByPattern", sessions.kill_all_sessions_by_pattern),
        # sharding
        RouterCommand("enableSharding", sharding.enable_sharding, aliases=("enablesharding",), admin_only=True,
            supports_write_concern=True),
        RouterCommand("shardCollection", sharding.shard_collection, aliases=("shardcollection",), admin_only=True,
            supports_write_concern=True),
        RouterCommand("refineCollectionShardKey", sharding.refine_collection_shard_key, admin_only=True,
            supports_write_concern=True),
        RouterCommand("reshardCollection", sharding.reshard_collection, admin_only=True, supports_write_concern=True,
            arguments=sharding.RESHARDING_ARGUMENTS),
        RouterCommand("abortReshardCollection", sharding.abort_reshard_collection, admin_only=True,
            supports_write_concern=True, arguments=()),
        RouterCommand("commitReshardCollection", sharding.commit_reshard_collection, admin_only=True,
            supports_write_concern=True, arguments=()),
        RouterCommand("cleanupReshardCollection", sharding.cleanup_reshard_collection, admin_only=True,
            supports_write_concern=True, arguments=()),
        RouterCommand("repairShardedCollectionChunksHistory", sharding.repair_sharded_collection_chunks_history,
            admin_only=True),
        # testing
        RouterCommand("configureFailPoint", testing.configure_fail_point, admin_only=True, test_only=True),
        RouterCommand("waitForFailPoint", testing.wait_for_fail_point, admin_only=True, reads=True),
        RouterCommand("logMessage", testing.log_message, admin_only=True, test_only=True,
            arguments=("extra", "severity", "options")),
        RouterCommand("_hashBSONElement", testing.hash_bson_element, test_only=True),
        *(
            RouterCommand(
                name,
                testing.succeeding(f"Is in the versions {' and '.join(versions)} of the Stable API."),
                api_versions=versions,
                deprecated_api_versions=deprecated,
                test_only=True,
            )
            for name, versions, deprecated in (
                ("testDeprecation", ("1",), ("1",)),
                ("testDeprecationInVersion2", ("1", "2"), ("2",)),
                ("testRemoval", ("1",), ()),
                ("testVersion2", ("2",), ()),
                ("testVersions1And2", ("1", "2"), ()),
            )
        ),
        # transactions
        RouterCommand("commitTransaction", transactions.commit_transaction, admin_only=True,
            supports_write_concern=True, api_versions=("1",), arguments=("recoveryToken",), begins_in_reactor=True),
        RouterCommand("abortTransaction", transactions.abort_transaction, admin_only=True,
            supports_write_concern=True, api_versions=("1",), arguments=("recoveryToken",), begins_in_reactor=True),
        # users
        RouterCommand("invalidateUserCache", users.invalidate_user_cache, arguments=()),
        RouterCommand("getnonce", users.get_nonce),
        RouterCommand("_mergeAuthzCollections", users.changing(users.MERGING), admin_only=True,
            supports_write_concern=True),
        *(
            RouterCommand(name, users.changing(summary), supports_write_concern=True)
            for name, summary in users.CHANGES.items()
        ),
        *(RouterCommand(name, users.reading(summary), reads=True) for name, summary in users.READS.items()),
        # writes
        RouterCommand("insert", writes.insert, writes=True, supports_write_concern=True, api_versions=("1",),
            begins_in_reactor=True),
        RouterCommand("update", writes.update, writes=True, supports_write_concern=True, api_versions=("1",),
            begins_in_reactor=True),
        RouterCommand("delete", writes.delete, writes=True, supports_write_concern=True, api_versions=("1",),
            begins_in_reactor=True),
        RouterCommand("findAndModify", writes.find_and_modify, aliases=("findandmodify",), writes=True,
            supports_write_concern=True, api_versions=("1",), begins_in_reactor=True),
    )
)
# fmt: on
"""All commands, a part for each file of handlers. What users need for them is in `router.access.command_needs`."""
