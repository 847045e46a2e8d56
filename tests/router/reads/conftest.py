"""The mongod with which reads are compared."""

from tests.sharding.conftest import collection, mongod

__all__ = ["collection", "mongod"]
