from hypothesis import given
from hypothesis import strategies as st

from tests.sampling import covering_sample

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
