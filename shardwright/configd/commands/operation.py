"""A command in progress on the primary."""

from collections.abc import Mapping
from typing import Any

from shardwright.configd.primary.primary import Primary
from shardwright.sharding.namespace import Namespace
from shardwright.wire.arguments import Arguments
from shardwright.wire.request import Request


class Operation:
    """A request with the term in which it is processed.

    Attributes:
        primary: the term's resources.
        arguments: the fields of the command.
        client_address: ``ip:port`` of the sender.
    """

    def __init__(self, primary: Primary, request: Request, client_address: str) -> None:
        self.primary = primary
        self.request = request
        self.arguments = Arguments.of(request)
        self.client_address = client_address

    @property
    def name(self) -> str:
        """The command's name."""
        return self.request.name

    @property
    def subject(self) -> str:
        """The string in the command's own field, such as a namespace or the name of a shard.

        Raises:
            CommandError: TypeMismatch.
        """
        return self.arguments.namespace(self.request.name.encode())

    @property
    def namespace(self) -> Namespace:
        """The collection named by the command's own field.

        Raises:
            CommandError: TypeMismatch, InvalidNamespace.
        """
        return Namespace.parse_collection(self.subject)

    async def log_changes(self, what: str, namespace: str, *details: Mapping[str, Any]) -> None:
        """Record changes in ``config.changelog``."""
        await self.primary.changelog.log_changes(what, namespace, details, client_address=self.client_address)
