"""Requests as a daemon has parsed them."""

from collections.abc import Mapping
from typing import Any

import bson

from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request


def request_of(command: Mapping[str, Any]) -> Request:
    """The request for a command on database ``d``."""
    return Request(OpMsg(op_msg(bson.encode({**command, "$db": "d"}), request_id=1)))
