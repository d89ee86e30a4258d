import io

import pytest
from rich.console import Console

from pyg_topomask.run.output import progress
from pyg_topomask.run.output.progress import Display, standard_output


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize(("seconds", "steps"), [(0.02, []), (10, [4, 8]), (31, [1, 2, 3, 4, 5, 6, 7, 8, 9])])
def test_a_pipe_gets_a_line_when_half_a_minute_has_passed(clock, seconds, steps):
    text = io.StringIO()
    with Display(Console(file=text, force_terminal=False)) as display:
        job = display.job("work", 10)
        for done in range(1, 11):
            clock[0] += seconds
            job.update(done, "loss 0.5")
    assert text.getvalue().splitlines() == [f"work: {done}/10  loss 0.5" for done in steps]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_shows_a_bar_the_time_left_and_the_whole_note(width):
    text = io.StringIO()
    with Display(Console(file=text, force_terminal=True, width=width)) as display:
        job = display.job("peptides-func-published (CustomGatedGCN+Transformer) seed 0", 100)
        job.update(15, "loss 1.529  validation accuracy 35.00")
        job.within("batch 12/341")
        display.refresh()
        shown = text.getvalue()
    for part in ("15/100", "-:--:--", "━", "1.529", "validation", "35.00", "12/341", "seed 0"):
        assert part in shown


def test_work_without_steps_prints_nothing_in_a_pipe(clock):
    text = io.StringIO()
    with Display(Console(file=text, force_terminal=False)) as display, display.working("comparing"):
        clock[0] += 100
    assert text.getvalue() == ""


@pytest.mark.usefixtures("capsys")
def test_columns_set_the_width_in_a_pipe(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert standard_output().width == 60
