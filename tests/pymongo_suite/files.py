"""The files of the drivers' suites that are run: those that talk to a server."""

from typing import Final

PYMONGO: Final = (
    "test_binary",
    "test_bulk",
    "test_causal_consistency",
    "test_change_stream",
    "test_client",
    "test_collation",
    "test_collection",
    "test_collection_management",
    "test_command_monitoring",
    "test_comment",
    "test_crud_unified",
    "test_crud_v1",
    "test_cursor",
    "test_custom_types",
    "test_database",
    "test_examples",
    "test_gridfs",
    "test_gridfs_bucket",
    "test_gridfs_spec",
    "test_index_management",
    "test_monitoring",
    "test_pooling",
    "test_read_write_concern_spec",
    "test_retryable_reads",
    "test_retryable_reads_unified",
    "test_retryable_writes",
    "test_retryable_writes_unified",
    "test_run_command",
    "test_session",
    "test_sessions_unified",
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
    "asyncio_tests/test_asyncio_session",
    "asyncio_tests/test_asyncio_tests",
    "asyncio_tests/test_examples",
)
"""Motor's tests with asyncio."""


AUTHENTICATION: Final = ("test_auth", "test_auth_spec")
"""PyMongo's tests of log-ins, which are run on deployments with access control; the others on open ones."""


TLS: Final = "test_ssl"
"""PyMongo's tests of TLS, which are run on a router with the certificates of the suite (`tests/access_control`)."""


def package_of(file: str) -> str:
    """The package whose suite a file belongs to."""
    return "motor" if file in MOTOR else "pymongo"
