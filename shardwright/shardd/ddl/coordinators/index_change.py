"""The base of the coordinators that change indexes."""

from hashlib import sha256
from typing import Any, ClassVar, Final

from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.shardd.ddl.coordinators.coordinator import Coordinator
from shardwright.wire.rawbson import encode_document

DIGEST: Final = "digest"


class IndexChange(Coordinator):
    """A change of a collection's indexes: of several that are not equal, each waits for its locks, as in MongoDB.

    The argument ``digest`` tells them apart. Whether users may write, each shard's mongod judges by itself.
    """

    is_user_write: ClassVar[bool] = False

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as its base
        super().__init__(*args, **options)
        if DIGEST not in self.arguments:
            asked = {**self.arguments, BYPASS: self.may_bypass}
            self.arguments[DIGEST] = sha256(encode_document(asked)).hexdigest()

    @property
    def id(self) -> dict[str, str]:
        """The ``_id`` of its document: only equal commands are one change."""
        return {**super().id, DIGEST: self.arguments[DIGEST]}
