"""The fields with which the parties of a two-phase commit mark their commands.

A router sends ``coordinator: true`` with the first statement to the shard that is to coordinate the commit. The
coordinator sends ``$coordinator`` with ``prepareTransaction``, and with the ``commitTransaction`` or
``abortTransaction`` that carries its decision; a participant accepts these for prepared transactions from no one else.
mongods know neither field.
"""

from typing import Final

COORDINATOR: Final = b"coordinator"
"""In the statement that starts a transaction on a shard: ``true`` if that shard is its coordinator."""

COORDINATED_BY: Final = b"$coordinator"
"""In a coordinator's command to a participant: the id of the coordinator's shard, a string."""
