"""A fixture for transactions that ends them and closes their connections after the test."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest

from tests.shardd.router_stand_in import ShardedNamespace
from tests.shardd.transactions.routed_transaction import RoutedTransaction


class Begin(Protocol):
    """Makes a `RoutedTransaction` on the collection of the test."""

    def __call__(self, *args: object, **options: object) -> RoutedTransaction: ...


@pytest.fixture
def begin(ranged: ShardedNamespace) -> Iterator[Begin]:
    """Transactions of the test, whose connections are closed after it; open ones are aborted."""
    with ExitStack() as stack:

        def make(*args: object, **options: object) -> RoutedTransaction:
            transaction = RoutedTransaction(ranged, *args, **options)  # type: ignore[arg-type]
            stack.callback(transaction.close)
            stack.callback(transaction.abort)
            return transaction

        yield make
