"""The choice of tests for the second run."""

from pathlib import Path

import pytest

from tests.second_run import DAYS, FURTHER, NOT_CLOSED, chosen, files

ROOT = Path(__file__).parent.parent


def ids(items: list[pytest.Item]) -> set[str]:
    return {item.nodeid for item in items}


@pytest.mark.parametrize("name", [*FURTHER, *NOT_CLOSED])
def test_what_is_named_exists(name: str) -> None:
    path, _, test = name.partition("::")
    assert (ROOT / path).exists()
    assert not test or f"def {test.partition('[')[0]}(" in (ROOT / path).read_text()


def test_every_test_has_its_day(request: pytest.FixtureRequest) -> None:
    items = list(request.session.items)
    by_day = [ids(chosen(items, day)[0]) for day in range(DAYS)]
    everything, left_out = chosen(items, None)
    every_day = set().union(*by_day)
    assert sum(map(len, by_day)) == len(every_day)
    assert ids(everything) == every_day
    assert not ids(everything) & ids(left_out)


def test_every_file_takes_part_or_has_a_reason() -> None:
    present = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "integration").rglob("test_*.py")}
    assert present == {*files(), *(name for name in NOT_CLOSED if name in present)}
    assert not [name for name in FURTHER if name.startswith("tests/integration/")]
