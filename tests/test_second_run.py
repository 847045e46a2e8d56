"""What the second run chooses."""

from pathlib import Path

import pytest

from tests.second_run import DAYS, NOT_CLOSED, TAKES_PART, chosen

ROOT = Path(__file__).parent.parent


def ids(items: list[pytest.Item]) -> set[str]:
    return {item.nodeid for item in items}


@pytest.mark.parametrize("name", [*TAKES_PART, *NOT_CLOSED])
def test_what_is_named_exists(name: str) -> None:
    path, _, test = name.partition("::")
    assert (ROOT / path).exists()
    assert not test or f"def {test.partition('[')[0]}(" in (ROOT / path).read_text()


def test_every_test_has_its_day(request: pytest.FixtureRequest) -> None:
    items = list(request.session.items)
    by_day = [ids(chosen(items, day)[0]) for day in range(DAYS)]
    everything, left_out = chosen(items, None)
    assert sum(map(len, by_day)) == len(everything)
    assert set().union(*by_day) == ids(everything)
    assert not ids(everything) & ids(left_out)
