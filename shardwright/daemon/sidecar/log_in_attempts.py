"""The user of a log-in attempt at a mongod, from a client's messages. Pure."""

from base64 import b64decode
from binascii import Error
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from shardwright.daemon.user_names import UserName
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.rawbson import is_string
from shardwright.wire.request import Request
from shardwright.wire.scram.messages import ClientFirst, ScramError

SASL_START: Final = "saslStart"
SASL_CONTINUE: Final = "saslContinue"

_SPECULATIVE: Final = b"speculativeAuthenticate"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The beginning of an authentication conversation.

    Attributes:
        user: the user of a SCRAM conversation; None if the message is not SCRAM's as drivers send it.
        mechanism: the mechanism, unchecked.
    """

    user: UserName | None
    db: str
    mechanism: Any

    @classmethod
    def of(cls, request: Request) -> Self | None:
        """Return the attempt that a request begins, separately or with a hello; None if it begins none.

        Raises:
            CommandError: as `Request.document`.
            InvalidBSONError: as `Request.document`.
        """
        if request.name == SASL_START:
            return cls._of_start(request.document, request.db)
        if request.name in HELLO_NAMES and _SPECULATIVE in request.fields:
            speculative = request.get(_SPECULATIVE)
            if isinstance(speculative, Mapping) and SASL_START in speculative:
                return cls._of_start(speculative, str(speculative.get("db")))
        return None

    @classmethod
    def _of_start(cls, start: Mapping[str, Any], db: str) -> Self:
        return cls(_user_of(start.get("payload"), db), db, start.get("mechanism"))


def _user_of(payload: object, db: str) -> UserName | None:
    try:
        message = b64decode(payload, validate=True) if is_string(payload) else payload
        return UserName(ClientFirst.parse(message).user, db) if isinstance(message, bytes) else None
    except (Error, ValueError, ScramError):
        return None
