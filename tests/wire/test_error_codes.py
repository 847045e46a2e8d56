"""The table of error codes, against MongoDB's published facts."""

import pytest

from shardwright.wire.error_codes import Category, ErrorCode, code_name, codes_of, has_category


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (0, "OK"),
        (13, "Unauthorized"),
        (26, "NamespaceNotFound"),
        (59, "CommandNotFound"),
        (61, "ShardKeyNotFound"),
        (112, "WriteConflict"),
        (150, "StaleEpoch"),
        (186, "ClientMetadataCannotBeMutated"),
        (193, "NoShardingEnabled"),
        (249, "StaleDbVersion"),
        (352, "UnsupportedOpQueryCommand"),
        (10107, "NotWritablePrimary"),
        (11000, "DuplicateKey"),
        (13388, "StaleConfig"),
    ],
)
def test_code_name_of_published_codes(code: int, name: str) -> None:
    assert code_name(code) == name
    assert ErrorCode[name] == code


@pytest.mark.parametrize("code", [-1, 44, 99, 40414, 51024, 2**31 - 1])
def test_code_name_of_a_number_without_name_is_its_location(code: int) -> None:
    assert code_name(code) == f"Location{code}"


def test_no_number_has_two_names() -> None:
    # An IntEnum would silently make the second name an alias of the first.
    assert len(ErrorCode.__members__) == len({code.value for code in ErrorCode})


@pytest.mark.parametrize("category", Category)
def test_every_category_has_published_codes(category: Category) -> None:
    assert codes_of(category)
    for code in codes_of(category):
        assert ErrorCode(code)
        assert has_category(code, category)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.BadValue, set()),
        (ErrorCode.StaleDbVersion, {Category.STALE_ROUTING}),
        (
            ErrorCode.StaleConfig,
            {Category.STALE_ROUTING, Category.STALE_SHARD_VERSION, Category.NEED_RETARGETING},
        ),
        (
            ErrorCode.InterruptedAtShutdown,
            {Category.RETRYABLE, Category.SHUTDOWN, Category.INTERRUPTION, Category.CANCELLATION},
        ),
        (
            ErrorCode.InterruptedDueToReplStateChange,
            {Category.RETRYABLE, Category.NOT_PRIMARY, Category.INTERRUPTION},
        ),
        (ErrorCode.NetworkTimeout, {Category.RETRYABLE, Category.NETWORK, Category.NETWORK_TIMEOUT}),
        (51024, set()),
    ],
)
def test_categories_of_a_code(code: int, expected: set[Category]) -> None:
    assert {each for each in Category if has_category(code, each)} == expected
