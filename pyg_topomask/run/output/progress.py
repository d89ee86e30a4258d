"""Progress: rich's bars on a terminal, and now and then a line without one."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

SECONDS = 30.0
"""Time between two lines of a job without a terminal."""


def standard_output(quiet: bool = False) -> Console:
    """Standard output. In a pipe, tables are as wide as ``$COLUMNS``, else as the terminal, else 80 columns."""
    return Console(file=sys.stdout, quiet=quiet)


def error_output() -> Console:
    """Standard error, for the progress of commands that print their result."""
    return Console(file=sys.stderr)


class Job:
    """One line of the display: a task with a known number of steps.

    Args:
        display: The display.
        title: What the job does.
        total: Number of steps.
    """

    def __init__(self, display: "Display", title: str, total: int) -> None:
        self.display, self.title, self.total, self.done, self.note = display, title, total, 0, ""
        self._printed = time.perf_counter()
        self._task = display.add_task(title, total=total, note="")

    def update(self, done: int, note: str = "") -> None:
        """Set the number of steps done and a short note, such as the latest metrics."""
        self.done, self.note = done, note
        self.within("")

    def within(self, text: str) -> None:
        """Show, before the latest note, how far the current step has come."""
        note = f"{text}  {self.note}".strip()
        self.display.update(self._task, completed=self.done, note=note)
        now = time.perf_counter()
        if not self.display.console.is_terminal and now - self._printed > SECONDS and self.done < self.total:
            self._printed = now
            self.display.say(f"{self.title}: {self.done}/{self.total}  {note}".rstrip())

    def remove(self) -> None:
        """Remove the line of a job that is done."""
        self.display.remove_task(self._task)


class Display(Progress):
    """Progress of one or several runs; a context manager.

    Args:
        console: Console to draw on; standard output if :obj:`None`. If it is not a terminal, plain lines are printed.
    """

    def __init__(self, console: Console | None = None) -> None:
        console = console or standard_output()
        # Title and note wrap, so that a narrow terminal shows all.
        title, note = (TextColumn(f"{{task.{of}}}", table_column=Column()) for of in ("description", "fields[note]"))
        super().__init__(
            title,
            BarColumn(10),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            note,
            console=console,
            disable=not console.is_terminal,
        )

    def job(self, title: str, total: int) -> Job:
        """Start a job on a new line; the arguments are those of :class:`Job`."""
        return Job(self, title, total)

    @contextmanager
    def working(self, title: str) -> Iterator[None]:
        """Show that something is done, such as a computation without steps."""
        job = self.job(title, 1)
        try:
            yield
        finally:
            job.remove()

    def say(self, text: str) -> None:
        """Print a line above the display."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
