"""A live progress display on a terminal, or plain lines without a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

Item = TypeVar("Item")

PLAIN_LINES = 10
"""Number of lines that a job prints without a terminal, unless it is slow."""

LEAST_SECONDS, HEARTBEAT_SECONDS, SHOWN_AFTER = 5.0, 60.0, 2.0


def standard_output(quiet: bool = False) -> Console:
    """Standard output. In a pipe, tables are as wide as ``$COLUMNS``, else as the terminal, else 80 columns."""
    # The file is given, so that bars are drawn while a library's messages are kept from sys.stdout.
    return Console(file=sys.stdout, quiet=quiet)


def error_output() -> Console:
    """Standard error, for the progress of commands that print their result."""
    return Console(file=sys.stderr)


def track(items: Sequence[Item], title: str) -> Iterator[Item]:
    """Items of a loop, such as that of a script, with its progress on standard error."""
    with Display(error_output()) as display:
        job = display.job(title, len(items), lines=len(items))
        for done, item in enumerate(items):
            job.update(done)
            yield item
        job.finish()


class _Rate(ProgressColumn):
    """Steps per second, or seconds per step."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        return Text(f"{speed:.1f}/s" if speed >= 1 else f"{1 / speed:.1f} s each", style="dim")


class _Bars(Progress):
    """Bars that appear after some seconds, so that short work shows none."""

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        return super().make_tasks_table([task for task in tasks if (task.elapsed or 0.0) >= task.fields["delay"]])


class Job:
    """One line of the display: a task with a known number of steps.

    On a terminal, its bar shows rate and remaining time. Without a terminal, a line is printed after each tenth of the
    steps if 5 seconds have passed since the last line.

    Args:
        display: The display.
        title: What the job does.
        total: Number of steps.
        done: Number of steps done at the beginning.
        heartbeat: Whether a line is also printed after a minute without one.
        delay: Seconds before the bar appears.
        lines: Number of lines without a terminal; as many as steps for a line per step.
    """

    def __init__(
        self,
        display: Display,
        title: str,
        total: int,
        done: int = 0,
        heartbeat: bool = True,
        delay: float = SHOWN_AFTER,
        lines: int = PLAIN_LINES,
    ) -> None:
        self.display, self.title, self.total, self.done, self.heartbeat = display, title, total, done, heartbeat
        self.lines, self.note = lines, ""
        self._start = self._printed = time.perf_counter()
        self._printed_at = done
        self._task: TaskID | None = None
        if display.progress is not None:
            self._task = display.progress.add_task(title, total=total, completed=done, note="", delay=delay)

    def update(self, done: int, note: str = "") -> None:
        """Set the number of steps done and a short note, such as the latest metrics."""
        self.done, self.note = done, note
        self._show(note)

    def step(self, text: str) -> None:
        """Show what the current step is doing, such as a batch, after the note."""
        self._show(f"{self.note}  {text}".lstrip())

    def _show(self, note: str) -> None:
        done = self.done
        if self._task is not None and self.display.progress is not None:
            self.display.progress.update(self._task, completed=done, note=note)
            return
        now = time.perf_counter()
        waited = now - self._printed
        tenth = (done - self._printed_at) * self.lines >= self.total and waited > LEAST_SECONDS
        if (tenth or (self.heartbeat and waited > HEARTBEAT_SECONDS)) and done < self.total:
            self._printed, self._printed_at = now, done
            self.display.print(f"{self.title}: {done}/{self.total}  {note}".rstrip())

    def message(self, line: str) -> None:
        """Show a library's message about the current step; without a terminal, only of downloads, which can be long."""
        if self._task is None and line.startswith("Downloading "):
            self.display.print(f"{self.title}: {line}")
        self.step(line)

    def finish(self, note: str = "") -> None:
        """Show the final line."""
        seconds = time.perf_counter() - self._start
        if self._task is not None and self.display.progress is not None:
            self.display.progress.update(self._task, completed=self.done, total=self.done, note=note)
            self.display.progress.stop_task(self._task)
        elif note or seconds > 1.0:
            self.display.print(f"{self.title}: done in {seconds:.1f} s  {note}".rstrip())

    def remove(self) -> None:
        """Remove the line of a job that is of no interest once it is done."""
        if self._task is not None and self.display.progress is not None:
            self.display.progress.remove_task(self._task)


class Display:
    """Progress of one or several runs; a context manager.

    Args:
        console: Console to draw on; standard output if :obj:`None`. If it is not a terminal, plain lines are printed.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or standard_output()
        self.progress: Progress | None = None
        self._depth = 0

    def __enter__(self) -> Display:
        self._depth += 1
        if self._depth == 1 and self.console.is_terminal:
            self.progress = _Bars(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                _Rate(),
                TimeRemainingColumn(compact=True, elapsed_when_finished=True),
                TextColumn("{task.fields[note]}"),
                console=self.console,
            )
            self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0 and self.progress is not None:
            self.progress.stop()
            self.progress = None

    def job(
        self,
        title: str,
        total: int,
        done: int = 0,
        heartbeat: bool = True,
        delay: float = SHOWN_AFTER,
        lines: int = PLAIN_LINES,
    ) -> Job:
        """Start a job on a new line; the arguments are those of :class:`Job`."""
        return Job(self, title, total, done, heartbeat, delay, lines)

    @contextmanager
    def working(self, title: str) -> Iterator[None]:
        """Show that something is done, such as a computation without steps."""
        job = self.job(title, 1)
        try:
            yield
        finally:
            job.remove()

    def print(self, text: str) -> None:
        """Print a line above the display."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
