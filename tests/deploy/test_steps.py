"""Progress bars, on a terminal and elsewhere."""

import io

import pytest

from shardwright.deploy.steps import BAR_WIDTH, BarSteps, Steps, progress_bar


def test_finished_bar_is_full_and_printed_once_without_a_terminal() -> None:
    stream = io.StringIO()
    with progress_bar("loading", 200, stream) as bar:
        for _ in range(4):
            bar.advance(50)
    assert stream.getvalue().count("loading") == 1
    assert "█" * BAR_WIDTH + " " in stream.getvalue()
    assert "200/200" in stream.getvalue()


def test_bar_shows_the_progress_when_the_work_fails() -> None:
    stream = io.StringIO()
    try:
        with progress_bar("loading", 100, stream) as bar:
            bar.advance(25)
            raise ValueError
    except ValueError:
        assert "█" * (BAR_WIDTH // 4) + "░" * (BAR_WIDTH * 3 // 4) in stream.getvalue()


@pytest.mark.parametrize("is_alone", [True, False])
def test_steps_advance_a_bar_which_replaces_their_lines_on_a_terminal(*, is_alone: bool) -> None:
    shown, lines = io.StringIO(), io.StringIO()
    with progress_bar("adding shard1", 3, shown) as bar:
        steps = BarSteps(Steps(lines), bar, is_alone=is_alone)
        with steps.step("2 mongods"):
            steps.advance()
            steps.advance()
        steps.say("a word")
        with steps.step("adding"):
            steps.advance()
    assert "3/3" in shown.getvalue()
    assert ("2 mongods" in lines.getvalue(), "a word" in lines.getvalue()) == (not is_alone, True)
