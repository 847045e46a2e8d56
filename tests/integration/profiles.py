"""Commands that reached the shards' mongods, as recorded by their profilers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pymongo.database import Database

from tests.integration.sharded import Document
from tests.local_cluster import Client


class Profiles:
    """The profiles of one database on several mongods."""

    def __init__(self, databases: list[Database[Document]]) -> None:
        self._databases = databases

    def entries(self, query: Mapping[str, Any]) -> list[Document]:
        """The entries that match, of all mongods."""
        return [entry for database in self._databases for entry in database["system.profile"].find(query)]

    def aggregations(self, comment: object) -> list[Document]:
        """The ``aggregate`` commands with a comment."""
        about = {"command.comment": comment, "command.aggregate": {"$exists": True}}
        return [entry["command"] for entry in self.entries(about)]


@contextmanager
def profiling(database: Database[Document], *mongods: Client) -> Iterator[Profiles]:
    """Profile all commands on a database during the block."""
    databases = [mongod[database.name] for mongod in mongods]
    for each in databases:
        each.command("profile", 2)
    try:
        yield Profiles(databases)
    finally:
        for each in databases:
            each.command("profile", 0)
