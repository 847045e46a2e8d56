"""Compression with pymongo as the client, in both directions."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import bson
import pytest
from pymongo import MongoClient

from shardwright.wire import legacy
from shardwright.wire.compression import Compressor, compress, decompress, negotiate
from shardwright.wire.errors import RemoteProtocolError
from shardwright.wire.frames import OP_COMPRESSED, OP_QUERY, FrameReader
from shardwright.wire.hello import MAX_WIRE_VERSION, MIN_WIRE_VERSION, parse_hello
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX, MESSAGE_BYTES_MAX, WRITE_BATCH_OPERATIONS_MAX
from shardwright.wire.message import OpMsg, reply_document
from shardwright.wire.rawbson import index


class CompressingServer:
    """The minimal server that a pymongo client can ping; it records the compressors used."""

    def __init__(self) -> None:
        self.compressors_met: list[Compressor] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept)
        self._threads: list[threading.Thread] = []
        self._acceptor.start()

    def close(self) -> None:
        """Stop listening, and wait until every client has closed its connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # shut down
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        reader = FrameReader()
        with closing(connection):
            while data := connection.recv(65536):
                reader.feed(data)
                while (frame := reader.next_frame()) is not None:
                    connection.sendall(self._answer(frame))

    def _answer(self, frame: bytes) -> bytes:
        opcode = int.from_bytes(frame[12:16], "little")
        if opcode == OP_COMPRESSED:
            inner, compressor = decompress(frame)
            self.compressors_met.append(compressor)
            return compress(self._answer(inner), compressor)
        if opcode == OP_QUERY:
            query = legacy.parse_query(frame)
            return legacy.op_reply(query.request_id, bson.encode(self._reply(query.query)))
        message = OpMsg(frame)
        return reply_document(message.request_id, self._reply(message.body))

    def _reply(self, body: bytes) -> dict[str, object]:
        reply: dict[str, object] = {"ok": 1.0}
        fields = index(body)
        if not fields.keys() & {b"hello", b"ismaster", b"isMaster"}:
            if b"ping" not in fields and b"endSessions" not in fields:
                raise RemoteProtocolError(f"not a command of this server: {list(fields)}")
            return reply
        reply |= {
            "isWritablePrimary": True,
            "helloOk": True,
            "maxBsonObjectSize": BSON_OBJECT_BYTES_MAX,
            "maxMessageSizeBytes": MESSAGE_BYTES_MAX,
            "maxWriteBatchSize": WRITE_BATCH_OPERATIONS_MAX,
            "minWireVersion": MIN_WIRE_VERSION,
            "maxWireVersion": MAX_WIRE_VERSION,
        }
        compression = parse_hello(body, fields).compression
        return reply | ({"compression": negotiate(compression)} if compression else {})


@pytest.fixture
def server() -> Iterator[CompressingServer]:
    with closing(CompressingServer()) as running:
        yield running


def test_pymongo_and_this_server_exchange_compressed_messages(server: CompressingServer) -> None:
    # snappy and zstd would need packages in addition to pymongo; test_against_mongod covers them with mongod.
    client: MongoClient[dict[str, object]] = MongoClient(
        f"mongodb://127.0.0.1:{server.port}/?compressors=zlib&directConnection=true"
    )
    with client:
        assert client.admin.command("ping", comment="x" * 10_000)["ok"] == 1.0
    assert Compressor.ZLIB in server.compressors_met
