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
