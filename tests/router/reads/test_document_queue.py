"""A queue of documents, compared with a list."""

from itertools import count

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.router.reads.result_merger import DocumentQueue, held_bytes
from shardwright.wire.errors import RemoteProtocolError
from shardwright.wire.rawbson import ARRAY, DocumentArray, array_of_documents

takes = st.lists(st.integers(1, 8), max_size=6)
rounds = st.lists(st.tuples(st.integers(0, 12), st.booleans(), takes), max_size=5)


def array(documents: list[bytes]) -> DocumentArray:
    raw = array_of_documents(documents)
    return DocumentArray(raw, (ARRAY, 0, 0, len(raw)))


@given(rounds)
def test_documents_leave_in_the_order_in_which_they_came(rounds: list[tuple[int, bool, list[int]]]) -> None:
    queue, numbers = DocumentQueue(), count()
    for size, is_array, taken in rounds:
        model = [bson.encode({"n": next(numbers)}) for _ in range(size)]
        if is_array:
            queue.put_array(array(model))
        else:
            queue.put(model)
        for step in (*taken, 12):
            assert bool(queue) == bool(model)
            assert held_bytes(model) <= queue.held_bytes or is_array
            expected, model = model[:step], model[step:]
            assert list(queue.peek(step)) == expected
            assert list(queue.take(step)) == expected
        assert not queue
        assert queue.held_bytes == 0


def test_the_memory_of_what_was_taken_becomes_free() -> None:
    queue = DocumentQueue()
    queue.put([bytes(100)] * 100)
    whole = queue.held_bytes
    for _ in range(10):
        queue.take(9)
    assert queue.held_bytes < whole / 4


def test_a_batch_counts_as_a_whole_until_it_has_been_taken_apart() -> None:
    queue = DocumentQueue()
    documents = [bson.encode({"x": bytes(1_000)})] * 10
    queue.put_array(array(documents))
    assert queue.held_bytes > 10_000
    queue.take(1)
    assert queue.held_bytes > 10_000
    queue.take(9)
    assert queue.held_bytes == 0


def test_what_is_wrong_with_a_batch_is_found_when_it_is_reached() -> None:
    queue = DocumentQueue()
    raw = bson.encode({"0": {"n": 1}, "1": {"n": 2}, "2": 3})
    queue.put_array(DocumentArray(raw, (ARRAY, 0, 0, len(raw))))
    assert len(queue.take(2)) == 2
    with pytest.raises(RemoteProtocolError):
        queue.take(1)
