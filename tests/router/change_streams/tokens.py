"""Tokens of small cluster times."""

import bson
from bson.timestamp import Timestamp

from shardwright.router.change_streams.tokens import ResumeToken


def mark(time: int) -> ResumeToken:
    """The high-water mark of a time."""
    return ResumeToken.high_water_mark(Timestamp(1, time))


def token(time: int, *, invalidates: bool = False) -> ResumeToken:
    """The token of an event."""
    data = mark(time).data.replace("2B0229296E04", f"2B022C010029{'6F' if invalidates else '6E'}04")
    return ResumeToken(data, bson.encode({"_data": data}))
