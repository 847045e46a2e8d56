"""Every helper that mongosh has is tried by some script, or there is a reason why none can."""

import json
from typing import Final

import pytest

from shardwright.mongosh_compat.runner import SCRIPTS, run_code
from tests.local_cluster import RunningCluster

OBJECTS: Final = {
    "sh": ("sh", "helpers_sh.js"),
    "db": ("db", "helpers_db.js"),
    "collection": ("db.c", "helpers_collection.js"),
    "cursor": ("db.c.find()", "helpers_collection.js"),
    "connection": ("db.getMongo()", "helpers_objects.js"),
    "session": ("db.getMongo().startSession()", "helpers_objects.js"),
    "bulk operation": ("db.c.initializeOrderedBulkOp()", "helpers_objects.js"),
    "bulk statement": ("db.c.initializeOrderedBulkOp().find({})", "helpers_objects.js"),
    "explanation": ("db.c.explain()", "helpers_objects.js"),
    "plan cache": ("db.c.getPlanCache()", "helpers_objects.js"),
    "change stream": ("db.watch()", "helpers_objects.js"),
}
"""The objects with helpers: an expression for each, and the script that tries them."""

NOT_TRIED: Final[dict[str, dict[str, str]]] = {
    "sh": {
        **dict.fromkeys(
            (
                *("moveCollection", "abortMoveCollection", "unshardCollection", "abortUnshardCollection"),
                *("getTransitionToDedicatedConfigServerStatus", "shardDrainingStatus"),
            ),
            "MongoDB 8.0",
        ),
        "checkMetadataConsistency": "MongoDB 7.0",
        "shardAndDistributeCollection": "MongoDB 8.0: reshardCollection to the same key",
    },
    "db": {
        **dict.fromkeys(
            ("cloneCollection", "cloneDatabase", "copyDatabase", "printSlaveReplicationInfo"),
            "mongosh itself refuses it",
        ),
        **dict.fromkeys(("auth", "logout"), "tests/access_control has a cluster that is closed"),
        "checkMetadataConsistency": "MongoDB 7.0",
        "createEncryptedCollection": "needs a client with automatic encryption",
        "rotateCertificates": "connections of these tests are not secured",
        "shutdownServer": "would end the router that other tests use",
        "sql": "Atlas only",
    },
    "collection": {
        **dict.fromkeys(("analyzeShardKey", "configureQueryAnalyzer", "checkMetadataConsistency"), "MongoDB 7.0"),
        "getShardLocation": "MongoDB 8.1",
        **dict.fromkeys(
            (
                *("createSearchIndex", "createSearchIndexes", "dropSearchIndex", "getSearchIndexes"),
                "updateSearchIndex",
            ),
            "Atlas only",
        ),
        "compactStructuredEncryptionData": "needs a client with automatic encryption",
        "reIndex": "a mongos has no such command either",
    },
    "cursor": {
        **dict.fromkeys(("maxScan", "oplogReplay"), "removed from MongoDB before 6.0"),
        "disableBlockWarnings": "is about mongosh's own output",
        "noCursorTimeout": "mongosh sets a flag that its driver does not know",
        "toJSON": "is about mongosh's own output",
    },
    "connection": {
        "bulkWrite": "MongoDB 8.0",
        "platforms": "is about mongosh itself",
        **dict.fromkeys(("getClientEncryption", "getKeyVault"), "needs a client with automatic encryption"),
        **dict.fromkeys(("isCausalConsistency", "setCausalConsistency", "setSlaveOk"), "mongosh itself refuses it"),
    },
    "session": {
        "bulkWrite": "MongoDB 8.0",
        "platforms": "is about mongosh itself",
        **dict.fromkeys(
            ("startTransaction", "commitTransaction", "abortTransaction", "withTransaction"),
            "transactions.js tries it",
        ),
    },
    "bulk operation": {},
    "bulk statement": {},
    "explanation": {},
    "plan cache": dict.fromkeys(("getPlansByQuery", "listQueryShapes"), "mongosh itself refuses it"),
    "change stream": {
        **dict.fromkeys(
            ("batchSize", "isExhausted", "maxTimeMS", "objsLeftInBatch"), "mongosh itself refuses it on change streams"
        ),
    },
}
"""The helpers that no script tries, and why."""

NAMES_OF: Final = """
    (() => {
        const names = new Set();
        for (let each = Object.getPrototypeOf(%s); Object.getPrototypeOf(each); each = Object.getPrototypeOf(each))
            Object.getOwnPropertyNames(each).filter((name) => /^[a-z]/.test(name)).forEach((name) => names.add(name));
        names.delete("constructor");
        return [...names];
    })()"""


@pytest.fixture(scope="module")
def helpers(cluster: RunningCluster) -> dict[str, set[str]]:
    """The methods of each kind of object."""
    asked = ", ".join(f"{json.dumps(kind)}: {NAMES_OF % expression}" for kind, (expression, _) in OBJECTS.items())
    found = json.loads(run_code(cluster.client_uri(), f"JSON.stringify({{{asked}}})").check())
    return {kind: set(names) for kind, names in found.items()}


@pytest.mark.parametrize("kind", OBJECTS)
def test_every_helper_is_tried(helpers: dict[str, set[str]], kind: str) -> None:
    source = (SCRIPTS / OBJECTS[kind][1]).read_text(encoding="utf-8")
    tried = {name for name in helpers[kind] if f".{name}(" in source or f'"{name}"' in source}
    assert helpers[kind] - tried == NOT_TRIED[kind].keys()
