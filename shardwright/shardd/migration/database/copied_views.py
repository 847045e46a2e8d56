"""The views of a database that moves, as documents of ``system.views``.

A time-series collection is such a document too, for the view on its buckets.
"""

from collections.abc import Sequence

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.cursors import all_documents
from shardwright.shardd.local_mongod.moved_contents import VIEWS, create_views, drop_views
from shardwright.sharding.namespace import Namespace
from shardwright.wire.rawbson import decode_document


async def put_views(mongod: LocalMongod, db: str, views: Sequence[bytes]) -> None:
    """Make these the views of a database on this shard, where it has none of its own.

    Raises:
        CommandError: mongod refuses.
        BackendError: mongod does not answer.
    """
    namespace = Namespace(db, VIEWS)
    present = await all_documents(mongod, namespace, {})
    if sorted(present) == sorted(views):
        return
    await drop_views(mongod, db, [str(decode_document(each)["_id"]) for each in present])
    await create_views(mongod, db, views)
