"""A user's or cluster member's means of authentication, as the config servers store them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from shardwright.daemon.user_names import UserName
from shardwright.wire.scram.keys import MECHANISMS, Credentials, Mechanism


@dataclass(frozen=True, slots=True)
class Account:
    """The input of a SCRAM log-in. Privileges are not part of it: they are read once the password is proven.

    Attributes:
        name: the name that the client gave.
        user_id: distinguishes the user from a later one of the same name.
        credentials: by mechanism, the credentials that verify a proof; matching one of several is enough.
    """

    name: UserName
    exists: bool
    user_id: bytes
    credentials: Mapping[Mechanism, Sequence[Credentials]]

    @property
    def mechanisms(self) -> list[str] | None:
        """The mechanisms that the user may log in with; None if there is no such user."""
        return [each.value for each in Mechanism if each in self.credentials] if self.exists else None

    @classmethod
    def from_documents(cls, name: UserName, documents: Sequence[Mapping[str, Any]]) -> Self:
        """Decode the account in a reply to ``usersInfo`` with credentials.

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
