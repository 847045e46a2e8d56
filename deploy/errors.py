"""The one error of the launcher."""


class DeployError(Exception):
    """Something the person at the terminal can act on; the message is one clear sentence, shown without a traceback."""
