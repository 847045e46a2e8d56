"""The effect of a daemon's shutdown on the set and its clients."""

import signal
from pathlib import Path

from bson.int64 import Int64

from shardwright.wire.error_codes import ErrorCode
from tests.daemon.sidecar.hello_stream import HelloStream
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import Member, Set, replica_set

END_SECONDS_MAX = 30


def primary_of(running: Set) -> Member:
    with running.client() as client:
        client.admin.command("ping")
        return next(each for each in running.members if each.address == "{}:{}".format(*(client.primary or ())))


def test_another_member_takes_over_from_a_daemon_that_shuts_down(tmp_path: Path) -> None:
    """The mongods know nothing of daemons: without a hand-over the primary would run on, out of reach."""
    with replica_set(tmp_path, members=3) as three, three.client(w="majority", retryWrites=True) as client:
        client.db.c.insert_one({"_id": 0})
        for number in (1, 2):  # one after the other, as when all daemons of a set are restarted
            former = primary_of(three)
            waiting, before = HelloStream(former.address), former.mongod_client()
            waiting.stream_news()
            running = former.daemon.running
            assert running is not None
            running.send_signal(signal.SIGTERM)
            told = waiting.receive()
            while told["ok"]:  # first that it is not primary any more
                told = waiting.receive()
            assert (told["code"], told["codeName"]) == (ErrorCode.ShutdownInProgress, "ShutdownInProgress")
            assert told["errmsg"] == "The server is in quiesce mode and will shut down"
            assert isinstance(told["remainingQuiesceTimeMillis"], Int64)
            waiting.socket.close()
            assert running.wait(END_SECONDS_MAX) == 0
            assert before.admin.command("hello")["secondary"]
            before.close()
            client.db.c.insert_one({"_id": number})
            assert primary_of(three) is not former
            former.daemon.start()
            former.wait_ready()
        eventually(lambda: client.db.c.count_documents({}) == 3, what="all writes")


def test_an_only_member_stays_primary(tmp_path: Path) -> None:
    with replica_set(tmp_path) as one, one.members[0].mongod_client() as mongod:
        (member,) = one.members
        running = member.daemon.running
        assert running is not None
        running.send_signal(signal.SIGTERM)
        assert running.wait(END_SECONDS_MAX) == 0
        assert mongod.admin.command("hello")["isWritablePrimary"]
        member.daemon.start()
        member.wait_ready()
