"""The launcher's error."""

from pymongo.errors import OperationFailure, PyMongoError


class DeployError(Exception):
    """A problem that the user can act on; the message is one clear sentence, shown without a traceback."""

    exit_status = 1


def reason(error: PyMongoError) -> str:
    """Return the cause of a failed command, without the whole reply that pymongo adds to the text of its errors."""
    if isinstance(error, OperationFailure) and error.details:
        return f"{error.details.get('errmsg', error)} (code {error.code})"
    return str(error)


def os_reason(error: OSError) -> str:
    """Return the cause of a failed operation on a file, with the name of the file if it is known."""
    text = error.strerror or str(error)
    return text if error.filename is None else f"{error.filename}: {text}"
