"""No sentence of the code and its documentation has a phrase that marks it as hard to read (`tests.english`)."""

from typing import Final

from tests.english import ROOT, occurrences, odd_openings, pages

RIGHT: Final = {
    "shardwright/router/access/user_cache.py": "anybody-seen",
    "shardwright/shardd/ddl/create_collection.py": "must match that of exists",
    "shardwright/configd/catalog/chunks.py": "do not match those of keyPattern",
    "shardwright/sharding/initial_chunks.py": "should be greater than that of lower",
}
"""By file, a text around a phrase: errors with MongoDB's own words, and the name of a file."""


def test_no_sentence_has_such_a_phrase() -> None:
    """A failure names the sentences: rewrite each as a whole, since another word in its place cures nothing."""
    found = [
        occurrence
        for file in (*pages(), *sorted((ROOT / "shardwright").rglob("*.py")))
        for occurrence in occurrences(file)
        if RIGHT.get(occurrence.file, occurrence.phrase + "\n") not in occurrence.context
    ]
    assert [f"{each.file}: {each.context}" for each in found] == []


def test_docstrings_open_with_a_verb_or_a_noun() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text}"
        for folder in ("shardwright", "bench", "tests")
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line, text in odd_openings(file)
    ]
    assert found == []


def test_what_is_right_is_still_there() -> None:
    for file, text in RIGHT.items():
        assert any(text in each.context for each in occurrences(ROOT / file)), file
