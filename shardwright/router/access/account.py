"""How a user or a member of the cluster may authenticate, as the config servers store it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from shardwright.daemon.user_names import UserName
from shardwright.wire.scram.keys import MECHANISMS, Credentials, Mechanism


@dataclass(frozen=True, slots=True)
class Account:
    """What a log-in by SCRAM needs, and no more: what the user may do is not asked for before the password is proven.

    Attributes:
        name: under which somebody wants to log in.
        exists: whether there is such a user.
        user_id: tells the user from a later one of the same name.
        credentials: with what a proof is verified, by mechanism; one of several is enough.
    """

    name: UserName
    exists: bool
    user_id: bytes
    credentials: Mapping[Mechanism, Sequence[Credentials]]

    @property
    def mechanisms(self) -> list[str] | None:
        """By which mechanisms the user may log in; None if there is no such user."""
        return [each.value for each in Mechanism if each in self.credentials] if self.exists else None

    @classmethod
    def from_documents(cls, name: UserName, documents: Sequence[Mapping[str, Any]]) -> Self:
        """The account in a reply to ``usersInfo`` with credentials.

        Raises:
            KeyError, TypeError, ValueError: a document is malformed.
        """
        if not documents:
            return cls(name, exists=False, user_id=b"", credentials={})
        (document,) = documents
        credentials = {
            MECHANISMS[mechanism]: (Credentials.from_document(MECHANISMS[mechanism], stored),)
            for mechanism, stored in document.get("credentials", {}).items()
            if mechanism in MECHANISMS
        }
        return cls(name, exists=True, user_id=bytes(document.get("userId", b"")), credentials=credentials)
