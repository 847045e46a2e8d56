"""The one error of the launcher."""

from pymongo.errors import OperationFailure, PyMongoError


class DeployError(Exception):
    """Something the person at the terminal can act on; the message is one clear sentence, shown without a traceback."""


def reason(error: PyMongoError) -> str:
    """Why a command failed, without the whole reply that pymongo adds to the text of its errors."""
    if isinstance(error, OperationFailure) and error.details:
        return f"{error.details.get('errmsg', error)} (code {error.code})"
    return str(error)
