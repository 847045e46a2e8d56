"""A plugin of pytest for the suite: while Motor's finds out about the server, a tenth of a second is not the end.

Before any test it connects with TLS, with a certificate, and without TLS, and gives the server that much time for each.
A busy machine may take longer.
"""

from collections.abc import Mapping
from typing import Any, Final

import pymongo
import pytest

from tests.pymongo_suite.files import MOTOR_TLS

MILLISECONDS: Final = 5000
_TOO_SHORT: Final = 100
_LIMITS: Final = ("connectTimeoutMS", "serverSelectionTimeoutMS")
_OF_TLS: Final = frozenset({"ssl", "tlsCAFile"})

_MongoClient: Final = pymongo.MongoClient


def with_patience(options: Mapping[str, Any], *, speaks_tls: bool) -> dict[str, Any]:
    """Return the options of a client with longer limits, unless its operation is bound to fail.

    Args:
        options: of the client, as the suite gives them.
        speaks_tls: whether the server does.
    """
    tries_tls = not _OF_TLS.isdisjoint(options)
    if tries_tls and not speaks_tls:
        return dict(options)
    return {**options, **{name: MILLISECONDS for name in _LIMITS if options.get(name) == _TOO_SHORT}}


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(args: list[str]) -> None:
    """Have the suite's clients wait longer from now on, until its tests have been collected."""
    speaks_tls = any(f"test/{file}.py" in args for file in MOTOR_TLS)

    def patient(*hosts: Any, **options: Any) -> Any:  # noqa: ANN401 - as the library's
        return _MongoClient(*hosts, **with_patience(options, speaks_tls=speaks_tls))

    setattr(pymongo, "MongoClient", patient)  # noqa: B010 - to a type checker it is a class


@pytest.hookimpl
def pytest_collection_finish() -> None:
    """The suite's own limits apply to its tests."""
    setattr(pymongo, "MongoClient", _MongoClient)  # noqa: B010 - as above
