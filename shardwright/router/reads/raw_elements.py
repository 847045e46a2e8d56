"""Elements of a client's command that are forwarded to a shard unchanged."""

from shardwright.wire.request import Request


def raw_elements(request: Request, names: tuple[bytes, ...]) -> bytes:
    """Return the elements of a command with the given names, ready for `rawbson.append`."""
    body, fields = request.body, request.fields
    spans = [fields[name] for name in names if name in fields]
    return b"".join([body[start:end] for _, start, _, end in spans])
