"""The data of the demo."""

from shardwright.deploy.demo import batches, load_cities, split_points


def test_there_are_many_cities_in_shard_key_order() -> None:
    cities = load_cities()
    assert len(cities) >= 100_000
    keys = [(city["country"], city["_id"]) for city in cities]
    assert keys == sorted(set(keys))


def test_split_points_are_distinct_countries_in_order() -> None:
    cities = [{"country": country} for country in "AAAAAAAABBCD"]
    assert split_points(cities, 4) == ["A", "B"]
    assert split_points(cities, 1) == []


def test_batches_keep_everything_in_order() -> None:
    documents = [{"_id": number} for number in range(7)]
    assert [len(batch) for batch in batches(documents, 3)] == [3, 3, 1]
    assert [document for batch in batches(documents, 3) for document in batch] == documents
