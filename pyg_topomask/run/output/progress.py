"""A live progress display on a terminal, or plain lines without a terminal."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

PLAIN_LINES = 10
"""Number of lines that a job prints without a terminal, unless it is slow."""

_UNWRAPPED = 10_000

LEAST_SECONDS, HEARTBEAT_SECONDS = 5.0, 60.0


def standard_output(quiet: bool = False) -> Console:
    """Standard output. Outside of a terminal, as in a pipe, lines are not wrapped."""
    found = Console(quiet=quiet)
    return found if found.is_terminal else Console(quiet=quiet, width=_UNWRAPPED)


class Job:
    """One line of the display: a task with a known number of steps.

    Without a terminal, a line is printed after each tenth of the steps if 5 seconds have passed since the last line.

    Args:
        display: The display.
        title: What the job does.
        total: Number of steps.
        done: Number of steps done at the beginning.
        heartbeat: Whether a line is also printed after a minute without one.
    """

    def __init__(self, display: Display, title: str, total: int, done: int = 0, heartbeat: bool = True) -> None:
        self.display, self.title, self.total, self.done, self.heartbeat = display, title, total, done, heartbeat
        self._start = self._printed = time.perf_counter()
        self._printed_at = done
        self._task: TaskID | None = None
        if display.progress is not None:
            self._task = display.progress.add_task(title, total=total, completed=done, note="")

    def update(self, done: int, note: str = "") -> None:
        """Set the number of steps done and a short note, such as the latest metrics."""
        self.done = done
        if self._task is not None and self.display.progress is not None:
            self.display.progress.update(self._task, completed=done, note=note)
            return
        now = time.perf_counter()
        waited = now - self._printed
        tenth = (done - self._printed_at) * PLAIN_LINES >= self.total and waited > LEAST_SECONDS
        if (tenth or (self.heartbeat and waited > HEARTBEAT_SECONDS)) and done < self.total:
            self._printed, self._printed_at = now, done
            self.display.print(f"{self.title}: {done}/{self.total}  {note}".rstrip())

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
            self.progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
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

    def job(self, title: str, total: int, done: int = 0, heartbeat: bool = True) -> Job:
        """Start a job on a new line."""
        return Job(self, title, total, done, heartbeat)

    def print(self, text: str) -> None:
        """Print a line above the display."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
