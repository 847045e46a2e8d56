"""The states of a mongod that joins a replica set, and the remedies for wrong ones. Pure."""

from collections.abc import Mapping
from enum import Enum
from typing import Any


class Progress(Enum):
    """Progress of a member into its set."""

    EMPTY = "has no configuration"
    STARTING = "is starting, or in an election"
    COPYING = "is copying the data of the set"
    SECONDARY = "is a secondary"
    PRIMARY = "is the primary"


class WrongStateError(ValueError):
    """A state that does not change when the command is repeated; the message has the remedy."""


def progress(hello: Mapping[str, Any], replica_set: str, mongod: str, daemon: str) -> Progress:
    """Return the progress of a mongod according to its hello.

    Args:
        replica_set: the set it should belong to.
        mongod: its address in the configuration of the set.
        daemon: the address of the daemon in front of it.

    Raises:
        WrongStateError: it belongs to another set, has another address in the configuration, or was removed from its
            set.
    """
    if "setName" not in hello:
        if hello.get("isreplicaset"):
            return Progress.EMPTY
        if hello.get("msg") == "isdbgrid":
            raise WrongStateError(f"a router answers at {mongod}; shardwright.mongod.address has to be the mongod's")
        if hello.get("info"):
            return Progress.STARTING  # with a configuration that it is still loading
        raise WrongStateError(
            f"the mongod {mongod} runs without a replica set; write replication.replSetName: {replica_set} into its "
            "file"
        )
    if hello["setName"] != replica_set:
        raise WrongStateError(
            f"the mongod {mongod} belongs to the replica set {hello['setName']}, not to {replica_set}; compare the "
            "files of daemon and mongod"
        )
    me = hello.get("me")
    if me == daemon:
        raise WrongStateError(
            f"the set {replica_set} has the address of the daemon {daemon} in its configuration; reconfigure it "
            f"(replSetReconfig) with {mongod} instead"
        )
    if me is not None and me != mongod:
        raise WrongStateError(
            f"the mongod is {me} in the configuration of {replica_set}, and {mongod} in the file of its daemon; make "
            "them the same"
        )
    members = (*hello.get("hosts", ()), *hello.get("passives", ()), *hello.get("arbiters", ()))
    if members and mongod not in members:
        raise WrongStateError(
            f"the mongod {mongod} was removed from the set {replica_set}, or belongs to another set of this name with "
            f"{', '.join(members)}; stop it, empty its storage.dbPath, start it, and run this command again"
        )
    if hello.get("isWritablePrimary"):
        return Progress.PRIMARY
    if hello.get("secondary"):
        return Progress.SECONDARY
    return Progress.COPYING if hello.get("primary") else Progress.STARTING


def check_listed(listed: str, hello: Mapping[str, Any], replica_set: str) -> None:
    """Check that the shard in the catalog is the set of this member, not another one with the same name.

    Args:
        listed: the connection string of the shard in the catalog.
        hello: of this member's daemon, with the addresses of all daemons of its set.
        replica_set: the set it should belong to.

    Raises:
        WrongStateError: it is another set.
    """
    name, _, addresses = listed.partition("/")
    own = {*hello.get("hosts", ()), *hello.get("passives", ())}
    known = addresses.split(",")
    if name != replica_set or not own.intersection(known):
        raise WrongStateError(
            f"the shard {replica_set} of the cluster is another replica set, at {listed}, and this one does not belong "
            f"to the cluster{_remedy(replica_set, known[0])}"
        )


def check_identity(own: Mapping[str, Any], others: Mapping[str, Any], replica_set: str, through: str) -> None:
    """Check that two configurations are of one set, not of two with the same name.

    Args:
        own: the configuration of this member's set.
        others: the configuration of the set of the member `through`.

    Raises:
        WrongStateError: they are of two sets.
    """
    if own["settings"]["replicaSetId"] != others["settings"]["replicaSetId"]:
        raise WrongStateError(
            f"this member belongs to another replica set {replica_set} than {through}{_remedy(replica_set, through)}"
        )


def _remedy(replica_set: str, through: str) -> str:
    return (
        ". If this member has no data, stop its mongod, empty its storage.dbPath, start it, and run "
        f"`shardwright join {replica_set} --member {through}`"
    )


def extended(configuration: Mapping[str, Any], mongod: str) -> dict[str, Any] | None:
    """Return the configuration of a set with another member; None if the set has it.

    The server itself gives a new member no vote until it has copied the data.
    """
    members = configuration["members"]
    if mongod in [member["host"] for member in members]:
        return None
    number = max(member["_id"] for member in members) + 1
    return {
        **configuration,
        "version": configuration["version"] + 1,
        "members": [*members, {"_id": number, "host": mongod}],
    }
