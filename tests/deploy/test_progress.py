import io

from shardwright.deploy.progress import WIDTH, progress_bar


def test_finished_bar_is_full_and_printed_once_without_a_terminal() -> None:
    stream = io.StringIO()
    with progress_bar("loading", 200, stream) as bar:
        for _ in range(4):
            bar.advance(50)
    assert stream.getvalue().count("loading") == 1
    assert "█" * WIDTH + " " in stream.getvalue()
    assert "200/200" in stream.getvalue()


def test_bar_shows_the_progress_when_the_work_fails() -> None:
    stream = io.StringIO()
    try:
        with progress_bar("loading", 100, stream) as bar:
            bar.advance(25)
            raise ValueError
    except ValueError:
        assert "█" * (WIDTH // 4) + "░" * (WIDTH * 3 // 4) in stream.getvalue()
