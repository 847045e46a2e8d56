"""The files of the drivers' suites that are run, because they need a server."""

from typing import Final

PYMONGO: Final = (
    "test_binary",
    "test_bulk",
    "test_causal_consistency",
    "test_change_stream",
    "test_client",
    "test_client_backpressure",
    "test_collation",
    "test_collection",
    "test_collection_management",
    "test_command_logging",
    "test_command_monitoring",
    "test_comment",
    "test_common",
    "test_connection_monitoring",
    "test_connections_survive_primary_stepdown_spec",
    "test_create_entities",
    "test_crud_unified",
    "test_crud_v1",
    "test_csot",
    "test_cursor",
    "test_custom_types",
    "test_database",
    "test_decimal128",
    "test_discovery_and_monitoring",
    "test_examples",
    "test_fork",
    "test_grid_file",
    "test_gridfs",
    "test_gridfs_bucket",
    "test_gridfs_spec",
    "test_handshake_unified",
    "test_heartbeat_monitoring",
    "test_json_util_integration",
    "test_load_balancer",
    "test_logger",
    "test_max_staleness",
    "test_mongos_load_balancing",
    "test_monitor",
    "test_monitoring",
    "test_operation_id_retry",
    "test_pooling",
    "test_raw_bson",
    "test_read_concern",
    "test_read_preferences",
    "test_read_write_concern_spec",
    "test_replica_set_reconfig",
    "test_retryable_reads",
    "test_retryable_reads_unified",
    "test_retryable_writes",
    "test_retryable_writes_unified",
    "test_run_command",
    "test_sdam_monitoring_spec",
    "test_server_selection",
    "test_server_selection_in_window",
    "test_server_selection_logging",
    "test_session",
    "test_sessions_unified",
    "test_streaming_protocol",
    "test_threads",
    "test_transactions",
    "test_transactions_unified",
    "test_unified_format",
    "test_versioned_api_integration",
)
"""PyMongo's tests in their synchronous form."""

MOTOR: Final = (
    "asyncio_tests/test_asyncio_await",
    "asyncio_tests/test_asyncio_basic",
    "asyncio_tests/test_asyncio_change_stream",
    "asyncio_tests/test_asyncio_client",
    "asyncio_tests/test_asyncio_collection",
    "asyncio_tests/test_asyncio_cursor",
    "asyncio_tests/test_asyncio_database",
    "asyncio_tests/test_asyncio_grid_file",
    "asyncio_tests/test_asyncio_gridfsbucket",
    "asyncio_tests/test_asyncio_replica_set",
    "asyncio_tests/test_asyncio_session",
    "asyncio_tests/test_asyncio_tests",
    "asyncio_tests/test_examples",
    "tornado_tests/test_motor_await",
    "tornado_tests/test_motor_basic",
    "tornado_tests/test_motor_change_stream",
    "tornado_tests/test_motor_client",
    "tornado_tests/test_motor_collection",
    "tornado_tests/test_motor_core",
    "tornado_tests/test_motor_cursor",
    "tornado_tests/test_motor_database",
    "tornado_tests/test_motor_grid_file",
    "tornado_tests/test_motor_gridfsbucket",
    "tornado_tests/test_motor_replica_set",
    "tornado_tests/test_motor_session",
    "tornado_tests/test_motor_transaction",
    "tornado_tests/test_motor_web",
)
"""Motor's tests with asyncio and with Tornado."""


AUTHENTICATION: Final = ("test_auth", "test_auth_spec", "tornado_tests/test_motor_auth")
"""Both drivers' tests of log-ins, which are run on deployments with access control; the others on open ones."""


TLS: Final = "test_ssl"
"""PyMongo's tests of TLS, which are run on routers with the certificates of the suite (`tests/access_control`)."""

MOTOR_TLS: Final = ("asyncio_tests/test_asyncio_ssl", "tornado_tests/test_motor_ssl")
"""Motor's tests of TLS, on an open router that asks clients for certificates (`test_part_tls`)."""


def package_of(file: str) -> str:
    """The package whose suite a file belongs to."""
    return "motor" if file.startswith(("asyncio_tests/", "tornado_tests/")) else "pymongo"
