"""The bytes of clients, which the kernel counts."""

import bson
import pytest

from shardwright.wire.message import op_msg
from shardwright.wire.transport.server import Traffic, sum_of
from tests.wire.transport.serving import answer_ok, serving

pytestmark = pytest.mark.usefixtures("both_ways_of_waiting")

PING = op_msg(bson.encode({"ping": 1, "$db": "admin"}), request_id=1)


async def test_bytes_are_counted_while_a_client_is_there_and_after_it_has_gone() -> None:
    async with serving(answer_ok) as served:
        client, other = await served.connect(), await served.connect()
        sent = received = 0
        for each in (client, other, client):
            await each.send(PING)
            frame = await each.receive()
            assert frame is not None
            sent, received = sent + len(PING), received + len(frame)
        assert served.server.traffic() == Traffic(sent, received)
        await client.stream.aclose()
        await served.handler.someone_left.wait()
        end = 1  # which TCP counts as a byte
        assert served.server.traffic() == Traffic(sent + end, received)


def test_a_sum_of_nothing_is_nothing() -> None:
    assert sum_of([]) == Traffic(0, 0)
    assert sum_of([Traffic(1, 2), Traffic(3, 4)]) == Traffic(4, 6)
