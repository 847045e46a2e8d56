"""The checker of causal consistency."""

from tests.chaos.checkers.causality import Knowledge


def test_a_session_reads_its_writes_and_does_not_go_back() -> None:
    session = Knowledge()
    assert session.check({"x": 0}) == []
    session.learn({"x": 2})
    assert session.check({"x": 2, "y": 0}) == []
    assert session.check({"x": 3}) == []
    assert session.check({"x": 1, "y": 5}) == ["x is 1, and the session knows of 2"]


def test_a_session_knows_what_the_writers_knew_of_what_it_has_read() -> None:
    writer, reader = Knowledge({"x": 1}), Knowledge()
    reader.learn(writer.values)
    assert reader.check({"x": 0}) != []


def test_knowledge_does_not_shrink() -> None:
    session = Knowledge({"x": 2})
    session.learn({"x": 1, "y": 1})
    assert session.values == {"x": 2, "y": 1}
