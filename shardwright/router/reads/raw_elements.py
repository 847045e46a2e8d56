"""Elements of a client's command that go on to a shard as they are."""

from shardwright.wire.request import Request


def raw_elements(request: Request, names: tuple[bytes, ...]) -> bytes:
    """The given top-level elements of a command, those that are there, ready for `rawbson.append`."""
    body, fields = request.body, request.fields
    spans = [fields[name] for name in names if name in fields]
    return b"".join([body[start:end] for _, start, _, end in spans])
