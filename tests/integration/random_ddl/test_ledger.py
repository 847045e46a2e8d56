"""The model itself: where documents can be after changes that overlap their writes."""

from collections.abc import Callable

import pytest

from tests.integration.random_ddl.ledger import Document, Ledger, gone, renamed


def inserted(ledger: Ledger, identity: int, place: str, first: int) -> Document:
    document = {"_id": identity}
    ledger.insert(document, place, first)
    return document


def test_a_write_before_a_change_is_carried_along() -> None:
    ledger = Ledger()
    document = inserted(ledger, 1, "db.x", 0)
    with ledger.change(renamed("db.x", "db.y")):
        assert ledger.possible_places(ledger.documents[1]) == {"db.x", "db.y"}
    assert ledger.possible_places(ledger.documents[1]) == {"db.y"}
    ledger.check({"db.y": [document]})
    wrong_ones: list[dict[str, list[Document]]] = [
        {"db.x": [document]},
        {"db.y": []},
        {"db.y": [document], "db.x": [document]},
        {"db.y": [{"_id": 2}]},
    ]
    for wrong in wrong_ones:
        with pytest.raises(AssertionError):
            ledger.check(wrong)


def test_a_write_during_a_change_may_have_come_before_or_after_it() -> None:
    ledger = Ledger()
    first, _ = ledger.now()
    with ledger.change(gone(lambda name: name == "db.x")):
        document = inserted(ledger, 1, "db.x", first)
    assert ledger.possible_places(ledger.documents[1]) == {"db.x", None}
    ledger.check({"db.x": [document]})
    ledger.check({"db.x": []})


def test_a_change_that_failed_has_no_effect() -> None:
    ledger = Ledger()
    inserted(ledger, 1, "db.x", 0)
    with pytest.raises(RuntimeError), ledger.change(gone(lambda name: name == "db.x")):
        raise RuntimeError
    assert ledger.possible_places(ledger.documents[1]) == {"db.x"}


@pytest.mark.parametrize("make", [renamed, lambda _, target: gone(lambda name: name == target)])
def test_what_a_collection_replaces_is_gone(make: Callable[[str, str], Callable[[str], str | None]]) -> None:
    ledger = Ledger()
    inserted(ledger, 1, "db.y", 0)
    with ledger.change(make("db.x", "db.y")):
        pass
    assert ledger.possible_places(ledger.documents[1]) == {None}
    ledger.check({})
