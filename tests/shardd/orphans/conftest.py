"""The temporary mongod that the tests of shard keys compare with."""

from tests.sharding.conftest import collection, mongod

__all__ = ["collection", "mongod"]
