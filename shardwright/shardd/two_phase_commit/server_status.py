"""The section ``twoPhaseCommitCoordinator`` of ``serverStatus``, which in a plain mongod counts nothing."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.wire.message import with_body
from shardwright.wire.rawbson import OBJECT, append, element, encode_document, find, without
from shardwright.wire.transport.client import response_body

SERVER_STATUS: Final = "serverStatus"

_SECTION: Final = b"twoPhaseCommitCoordinator"


def with_commit_statistics(frame: bytes | None, section: Mapping[str, Any]) -> bytes | None:
    """mongod's reply to ``serverStatus`` with the daemon's section in place of its own.

    Args:
        frame: the reply; it lacks the section if it is an error, or if the client does not want it.
        section: what the daemon has counted.
    """
    if frame is None:
        return None
    body = response_body(frame)
    if find(body, _SECTION) is None:
        return frame
    return with_body(frame, append(without(body, {_SECTION}), element(_SECTION, OBJECT, encode_document(section))))
