import io

import pytest
from rich.console import Console

from pyg_topomask.run.output import progress
from pyg_topomask.run.output.progress import Display


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
