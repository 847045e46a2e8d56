"""Names and contents of the fragments from which towncrier makes the changelog."""

import re

from tests.release_notes import fragment_types, fragments


def test_every_fragment_has_a_type_and_a_text() -> None:
    """towncrier ignores a fragment with another name."""
    name = re.compile(rf"[a-z0-9-]+\.({'|'.join(sorted(fragment_types()))})\.md")
    assert [path.name for path in fragments() if not name.fullmatch(path.name)] == []
    assert [path.name for path in fragments() if not path.read_text(encoding="utf-8").strip()] == []
