import io

import pytest
from rich.console import Console

from pyg_topomask.run.output import progress
from pyg_topomask.run.output.progress import Display, standard_output, track


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    return now


def lines(clock, total, seconds, **options):
    """The text that a job prints without a terminal, if each step takes the given number of seconds."""
    text = io.StringIO()
    with Display(Console(file=text, force_terminal=False)) as display:
        job = display.job("work", total, **options)
        for done in range(1, total + 1):
            clock[0] += seconds
            job.update(done)
    return text.getvalue().splitlines()


@pytest.mark.parametrize(("total", "seconds"), [(188, 0.02), (1000, 0.001), (10, 0.4)])
def test_a_short_job_prints_nothing_on_its_way(clock, total, seconds):
    assert lines(clock, total, seconds) == []


@pytest.mark.parametrize("seconds", [0.1, 1, 60, 600])
def test_a_preparation_prints_a_line_per_tenth_at_most(clock, seconds):
    found = lines(clock, 1000, seconds, heartbeat=False)
    assert found == [f"work: {done}/1000" for done in range(100, 1000, 100)]


def test_lines_are_seconds_apart(clock):
    assert lines(clock, 1000, 0.01) == ["work: 501/1000"]


def test_a_slow_training_prints_a_line_a_minute(clock):
    assert len(lines(clock, 100, 61)) == 99
    assert len(lines(clock, 100, 61, heartbeat=False)) == 9


def test_as_many_lines_as_steps_if_each_takes_seconds(clock):
    assert lines(clock, 20, 6, lines=20) == [f"work: {done}/20" for done in range(1, 20)]
    assert lines(clock, 20, 0.1, lines=20) == []


def on_terminal(seconds, act, **options):
    """What a terminal shows of a job after this time."""
    text = io.StringIO()
    with Display(Console(file=text, force_terminal=True, width=120)) as display:
        display.progress.get_time = lambda: seconds[0]
        job = display.job("work", 10, **options)
        act(job, seconds)
        display.progress.refresh()
    return text.getvalue()


def test_a_bar_appears_after_two_seconds():
    def wait(job, now):
        now[0] += 1
        job.update(1)

    assert "work" not in on_terminal([0.0], wait)
    assert "work" in on_terminal([0.0], wait, delay=0.0)


def test_a_bar_shows_rate_and_what_the_step_does():
    def work(job, now):
        for done in range(1, 5):
            now[0] += 4
            job.update(done, "loss 0.5")
        job.step("batch 3/7")

    text = on_terminal([0.0], work)
    assert "4.0 s each" in text
    assert "loss 0.5  batch 3/7" in text


def test_work_without_steps_prints_nothing_in_a_pipe(clock):
    text = io.StringIO()
    with Display(Console(file=text, force_terminal=False)) as display, display.working("comparing"):
        clock[0] += 100
    assert text.getvalue() == ""


def test_downloads_are_printed_in_a_pipe():
    text = io.StringIO()
    with Display(Console(file=text, force_terminal=False)) as display:
        job = display.job("loading", 1)
        for line in ("Downloading file.zip", "Processing..."):
            job.message(line)
    assert text.getvalue() == "loading: Downloading file.zip\n"


@pytest.mark.usefixtures("capsys")
def test_columns_set_the_width_in_a_pipe(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert standard_output().width == 60


def test_a_loop_is_tracked(clock, capsys):
    found = []
    for item in track("abc", "letters"):
        clock[0] += 10
        found.append(item)
    assert found == ["a", "b", "c"]
    assert capsys.readouterr().err.splitlines() == ["letters: 1/3", "letters: 2/3", "letters: done in 30.0 s"]
