"""Fixtures shared by the tests of the transport."""

import pytest

from tests.wire.transport import serving


@pytest.fixture(params=[False, True], ids=["trio", "reactor"])
def both_ways_of_waiting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run servers without and with the reactor."""
    monkeypatch.setattr(serving, "starts_reactor", request.param)
