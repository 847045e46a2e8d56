"""Documents with two fields of a name keep both."""

from bson import encode

from shardwright.wire.rawbson import WholeDocument, decode_whole, find, from_elements


def of_fields(*fields: tuple[str, object]) -> bytes:
    return from_elements(b"".join(encode({name: value})[4:-1] for name, value in fields))


def decoded(body: bytes) -> object:
    span = find(body, b"")
    assert span is not None
    return decode_whole(body, span)


def test_no_field_is_lost() -> None:
    inner = of_fields(("a", 1), ("b", [{"c": 2}]), ("a", {"d": 3}))
    whole = decoded(from_elements(b"\3\0" + inner))
    assert isinstance(whole, WholeDocument)
    assert whole == {"a": {"d": 3}, "b": [{"c": 2}]}
    assert list(whole.pairs()) == [("a", 1), ("a", {"d": 3}), ("b", [{"c": 2}])]
    assert isinstance(whole["a"], WholeDocument)


def test_nor_where_text_is_not_utf_8() -> None:
    text = from_elements(b"\2a\0\2\0\0\0\xff\0" + encode({"a": [{"b": 1}]})[4:-1])
    whole = decoded(from_elements(b"\3\0" + text))
    assert isinstance(whole, WholeDocument)
    assert list(whole.pairs()) == [("a", "\N{REPLACEMENT CHARACTER}"), ("a", [{"b": 1}])]
    assert isinstance(whole["a"][0], WholeDocument)
