"""Commands whose replies are compared with a mongod's; the fixtures are in `tests.router.conftest`."""

from typing import Any, Final

from pymongo.errors import OperationFailure

from tests.local_cluster import Client

Command = dict[str, Any]

VOLATILE: Final = frozenset({"$clusterTime", "operationTime", "electionId", "opTime", "lsid", "$readPreference"})


def run(client: Client, command: Command, db: str = "admin") -> Command:
    """The reply, failed or not, without the fields that differ between runs."""
    try:
        reply: Command = client[db].command(command)
    except OperationFailure as error:
        reply = dict(error.details or {})
    return {name: value for name, value in reply.items() if name not in VOLATILE}
