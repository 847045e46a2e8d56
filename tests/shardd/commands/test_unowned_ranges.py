"""The ranges in which a shard should have no documents."""

import pytest

from shardwright.shardd.commands.metadata_consistency import unowned
from tests.shardd.orphans.test_orphan_ranges import deletion, table


@pytest.mark.parametrize(
    ("owners", "tasks", "expected"),
    [
        (("me",), [], []),
        (("other",), [], ["[{ a: MinKey }, { a: MaxKey })"]),
        (("other", "me", "other"), [], ["[{ a: MinKey }, { a: 0 })", "[{ a: 10 }, { a: MaxKey })"]),
        (("me", "other", "other", "me"), [], ["[{ a: 0 }, { a: 20 })"]),
        (("me", "other", "other", "me"), [(5, 12)], ["[{ a: 0 }, { a: 5 })", "[{ a: 12 }, { a: 20 })"]),
        (("me", "other", "me"), [(-5, 20)], []),
    ],
)
def test_neither_owned_ranges_nor_range_deletions_count(
    owners: tuple[str, ...], tasks: list[tuple[int, int]], expected: list[str]
) -> None:
    assert [str(each) for each in unowned(table(*owners), "me", [deletion(*each) for each in tasks])] == expected
