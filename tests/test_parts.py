"""Runs in parts."""

import argparse

import pytest

from tests.parts import Part


def test_every_test_is_in_one_part(request: pytest.FixtureRequest) -> None:
    items = list(request.session.items)
    parts = [Part(number, 3).of(items) for number in (1, 2, 3)]
    assert sorted(item.nodeid for kept, _ in parts for item in kept) == sorted(item.nodeid for item in items)
    assert all(len(kept) + len(left_out) == len(items) for kept, left_out in parts)


def test_tests_of_a_file_stay_together(request: pytest.FixtureRequest) -> None:
    items = list(request.session.items)
    files = [{item.location[0] for item in Part(number, 3).of(items)[0]} for number in (1, 2, 3)]
    assert sum(map(len, files)) == len(set().union(*files))


def test_one_part_is_everything(request: pytest.FixtureRequest) -> None:
    items = list(request.session.items)
    assert Part.parse("1/1").of(items) == (items, [])


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/", "/2", "a/b", "-1/2", "1/2/3"])
def test_what_is_no_part(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no part"):
        Part.parse(text)
