from shardwright.deploy.reshardings import resharding_text

RESHARDING = {
    "process": "shard0.0.shardd",
    "ns": "shop.orders",
    "key": {"country": 1},
    "state": "cloning",
    "seconds": 7,
    "remainingSeconds": 12,
    "documents": 200_000,
    "documentsCopied": 1_234,
    "bytes": 200_000_000,
    "bytesCopied": 1_260_000,
    "changesFetched": 17,
    "changesApplied": 3,
}


def test_a_recipient_in_one_line() -> None:
    assert resharding_text(RESHARDING) == (
        'shard0.0.shardd: resharding shop.orders by {"country": 1}: cloning, 1,234 of 200,000 documents, 1.3 MB, '
        "3 of 17 changes, 7 s, about 12 s left"
    )


def test_an_unknown_remaining_time_is_left_out() -> None:
    assert resharding_text(RESHARDING | {"remainingSeconds": -1}).endswith("3 of 17 changes, 7 s")
