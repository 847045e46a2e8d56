"""Values of server parameters as text, as on a command line."""


def parse_boolean(text: str) -> bool:
    """Parse a parameter that is on or off; ValueError, with a message for the user, for anything else."""
    found = {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if found is None:
        raise ValueError(f"{text!r} is neither true nor false")
    return found
