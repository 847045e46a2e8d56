import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sampling import choose_by, covering_sample, is_drawn

ROWS = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.tuples(*[st.sampled_from("abcdef")] * width), min_size=1, max_size=40)
)


@given(rows=ROWS, seed=st.integers(0, 1000))
def test_every_value_of_every_column_occurs(rows: list[tuple[str, ...]], seed: int) -> None:
    kept = covering_sample(rows, seed)
    assert {cell for index in kept for cell in enumerate(rows[index])} == {
        cell for row in rows for cell in enumerate(row)
    }


@given(rows=ROWS, seed=st.integers(0, 1000))
def test_a_seed_gives_one_sample(rows: list[tuple[str, ...]], seed: int) -> None:
    assert covering_sample(rows, seed) == covering_sample(rows, seed)


def test_a_full_product_needs_as_many_rows_as_its_longest_column() -> None:
    rows = [(place, victim) for place in "abcdefgh" for victim in "xyz"]
    assert len(covering_sample(rows, 7)) == 8


def test_all_rows_occur_over_the_seeds() -> None:
    rows = [(place, victim) for place in "abcd" for victim in "xyz"]
    assert {index for seed in range(200) for index in covering_sample(rows, seed)} == set(range(len(rows)))


def test_a_share_of_subjects_is_drawn_and_another_one_with_another_seed(pytestconfig: pytest.Config) -> None:
    def drawn(seed: int) -> set[str]:
        choose_by(seed)
        return {subject for subject in map(str, range(1000)) if is_drawn(0.1, subject)}

    try:
        assert 60 < len(drawn(1)) < 140
        assert drawn(1) == drawn(1) != drawn(2)
    finally:
        choose_by(pytestconfig.option.sample_seed)
