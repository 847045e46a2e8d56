"""The three commands that carry batches of statements."""

from enum import Enum


class WriteKind(Enum):
    """What a batch does.

    Attributes:
        command: the name of the command.
        field: the argument that holds the statements.
    """

    INSERT = ("insert", b"documents")
    UPDATE = ("update", b"updates")
    DELETE = ("delete", b"deletes")

    # Each write looks up its counter by kind, and the hash of an Enum is computed in Python.
    __hash__ = object.__hash__

    def __init__(self, command: str, field: bytes) -> None:
        self.command = command
        self.field = field
