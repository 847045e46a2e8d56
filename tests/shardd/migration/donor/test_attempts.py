"""A donor's persisted attempts."""

from datetime import datetime, timedelta
from uuid import uuid4

import bson
from bson import Int64, MinKey, ObjectId

from shardwright.shardd.migration.donor.donor_state import MigrationAttempts
from shardwright.shardd.migration.donor.move_range import MoveRangeRequest
from shardwright.sharding.namespace import Namespace
from shardwright.wire.rawbson import VALUE_CODEC, encode_document

NOW = datetime(2026, 1, 2, 3, 4, 5)
REQUEST = MoveRangeRequest(
    Namespace.parse("db.c"),
    min=encode_document({"b": 1, "_id": MinKey()}),
    max=None,
    recipient="sh1",
    epoch=ObjectId(),
    max_chunk_bytes=Int64(1 << 40),
    force_jumbo=2,
    wait_for_delete=True,
    secondary_throttle=True,
    write_concern={"w": 2},
)


def test_persisted_attempts_are_read_back() -> None:
    attempts = MigrationAttempts(uuid4(), REQUEST).with_new("first", NOW).with_new("second", NOW + timedelta(hours=1))
    attempts = attempts.with_critical_section()
    stored = bson.decode(bson.encode(attempts.to_document()), codec_options=VALUE_CODEC)
    assert MigrationAttempts.from_document(stored) == attempts


def test_a_new_attempt_ends_the_previous_one() -> None:
    later = NOW + timedelta(minutes=5)
    attempts = MigrationAttempts(uuid4(), REQUEST).with_new("first", NOW).with_progress(10, 1000)
    first, second = attempts.with_new("second", later).attempts
    assert (first.session_id, first.end, first.documents, first.bytes) == ("first", later, 10, 1000)
    assert (second.session_id, second.start, second.end) == ("second", later, None)


def test_a_new_attempt_has_not_entered_its_critical_section() -> None:
    attempts = MigrationAttempts(uuid4(), REQUEST).with_new("first", NOW).with_critical_section()
    assert not attempts.with_new("second", NOW).has_entered_critical_section
