"""Locks for names."""

import asyncio

from shardwright.sync.locks import Locks


def test_holders_of_different_names_run_at_once_and_of_common_names_one_after_another() -> None:
    locks, entered = Locks(), list[str]()

    async def hold(name: str, *names: str, until: asyncio.Event) -> None:
        async with locks.held(*names):
            entered.append(name)
            await until.wait()

    async def run() -> None:
        first, second, at_once = asyncio.Event(), asyncio.Event(), asyncio.Event()
        at_once.set()
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            tasks.create_task(hold("first", "a", "b", "a", until=first))
            tasks.create_task(hold("second", "c", "b", until=second))
            tasks.create_task(hold("alone", "d", until=at_once))
            for _ in range(9):
                await asyncio.sleep(0)
            assert entered == ["first", "alone"]
            tasks.create_task(hold("third", "c", "a", until=at_once))
            first.set()
            for _ in range(9):
                await asyncio.sleep(0)
            second.set()
        assert sorted(entered) == ["alone", "first", "second", "third"]
        assert not locks._all

    asyncio.run(run())
