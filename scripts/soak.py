"""Run random calls, kills, races, damaged files and full disks for a number of minutes, and print counts.

    python scripts/soak.py --minutes 10
    python scripts/soak.py --minutes 1 --checks transforms attentions
    python scripts/soak.py --minutes 2.5 --each                  # 2.5 minutes for each check, one after the other
    python scripts/soak.py --replay attentions:838               # a failure of an earlier run again, with its traceback

Every trial is a function of the name of the check and a number. A trial fails if a public entry gives a wrong answer or
an error that it does not document, if a command ends with a traceback, or if a run that was killed, raced or lacked
space has other numbers after it was started again. The exit status is 1 if a trial failed.
"""

import argparse
import atexit
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import _soak_entries as entries
import torch

from pyg_topomask.cache import cache_dir

CONFIG = """
dataset: {format: PyG-MotifDataset, name: circle, num_graphs: 48, num_nodes: 12}
train: {batch_size: 16, ckpt_period: 1}
gt: {layer_type: GIN+GRF, layers: 1, n_heads: 2, dim_hidden: 8, dropout: 0.1}
optim: {base_lr: 0.01, max_epoch: 4, scheduler: cosine_with_warmup, num_warmup_epochs: 1}
topomask: {num_walks: 4, max_length: 2}
"""


def start(folder: Path, out: str, most_bytes: int | None = None) -> subprocess.Popen[str]:
    """Start ``topomask run`` in a folder with its own cache; no file may become larger than ``most_bytes``."""
    (folder / "soak.yaml").write_text(CONFIG)
    limit = None if most_bytes is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    command = [sys.executable, "-m", "pyg_topomask", "run", "soak.yaml", "--out", out]
    environment = os.environ | {"TOPOMASK_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=folder, stdout=pipe, stderr=subprocess.STDOUT, text=True, preexec_fn=limit, env=environment
    )


def finish(process: subprocess.Popen[str], may_fail: bool = False) -> int:
    """Wait for a command. Its output must not contain a traceback."""
    text = process.communicate()[0]
    if "Traceback" in text or (process.returncode != 0 and not may_fail):
        raise entries.WrongAnswerError(f"exit status {process.returncode}: {text[-2000:]}")
    return process.returncode


def metrics(folder: Path, out: str) -> Any:
    """Metrics of the finished run."""
    return json.loads((folder / out / "soak" / "summary.json").read_text())["metrics"]


@cache
def finished() -> Path:
    """A folder with a finished run, and in its cache the compiled libraries, which the user's cache may contain.

    It is removed when the program ends.
    """
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy_libraries(cache_dir(), folder)
    finish(start(folder, "out"))
    return folder


@contextmanager
def new_folder(compiled: bool) -> Iterator[Path]:
    """An empty folder for runs, with a cache that contains the compiled libraries or has to be filled."""
    with tempfile.TemporaryDirectory() as name:
        if compiled:
            copy_libraries(finished() / "cache", Path(name))
        yield Path(name)


def copy_libraries(cache: Path, folder: Path) -> None:
    """Copy the compiled libraries of a cache to the cache of a folder for runs."""
    for libraries in cache.glob("native-*"):
        shutil.copytree(libraries, folder / "cache" / libraries.name)


OFTEN = 0.9
"""Share of trials that find the compiled libraries, because compiling takes most of a trial."""


@cache
def undisturbed() -> Any:
    """Metrics of the run that nothing disturbs."""
    with new_folder(compiled=True) as folder:
        finish(start(folder, "out"))
        return metrics(folder, "out")


def end(folder: Path, out: str = "out") -> str:
    """Start the run again and compare its numbers. Returns "same numbers"."""
    finish(start(folder, out))
    if metrics(folder, out) != undisturbed():
        raise entries.WrongAnswerError(f"{metrics(folder, out)} instead of {undisturbed()}")
    return "same numbers"


def kill(draw: random.Random) -> str:
    """Kill a run up to three times at random moments, and finish it."""
    with new_folder(compiled=draw.random() < OFTEN) as folder:
        for _ in range(draw.randint(1, 3)):
            process = start(folder, "out")
            time.sleep(draw.uniform(2, 12))
            process.send_signal(signal.SIGKILL)
            process.communicate()
        return end(folder)


def race(draw: random.Random) -> str:
    """Start runs at the same time on one cache, some with one output folder."""
    with new_folder(compiled=draw.random() < OFTEN) as folder:
        outs = [draw.choice(["out", "other"]) for _ in range(3)]
        runs = [start(folder, out) for out in outs]
        for run in runs:
            finish(run, may_fail=True)  # a second run in the same folder is refused while the first one writes there
        for out in set(outs):
            end(folder, out)
    return "same numbers"


def lack_space(draw: random.Random) -> str:
    """Let no file grow beyond a random size, then allow it."""
    with new_folder(compiled=draw.random() < OFTEN) as folder:
        finish(start(folder, "out", int(2 ** draw.uniform(6, 17))), may_fail=True)
        return end(folder)


def damage_file(draw: random.Random) -> str:
    """Change or cut a random file of a run or its cache. The run starts again: the same numbers, or one message."""
    path = draw.choice(sorted(path for path in finished().rglob("*") if path.is_file()))
    whole, data = path.read_bytes(), bytearray(path.read_bytes())
    if draw.random() < 0.5:
        data = data[: draw.randrange(len(data) + 1)]
    for _ in range(draw.choice([0, 1, 20])):
        if data:
            data[draw.randrange(len(data))] = draw.randrange(256)
    summary = finished() / "out" / "soak" / "summary.json"
    report = summary.read_bytes()
    try:
        path.write_bytes(data)
        status = finish(start(finished(), "out"), may_fail=True)
        if status == 0 and metrics(finished(), "out") != undisturbed() and "result.json" not in str(path):
            raise entries.WrongAnswerError(f"other metrics after damage to {path}")
    finally:
        path.write_bytes(whole)
        summary.write_bytes(report)
    return "repaired" if status == 0 else "refused"


CHECKS: dict[str, Callable[[random.Random], str]] = {
    "transforms": entries.call_transform,
    "attentions": entries.call_attention,
    "wrong arguments": entries.call_attention_wrongly,
    "precision": entries.call_in_low_precision,
    "training": entries.train_for_long,
    "kills": kill,
    "races": race,
    "lack of space": lack_space,
    "damaged files": damage_file,
}

SHARES = {"transforms": 100, "attentions": 100, "wrong arguments": 100, "precision": 100, "training": 5}
"""Trials in each round; one of the others, which take seconds."""


def trial(check: str, number: int) -> str:
    """Outcome of one trial, with the failure's text if there is one."""
    try:
        return CHECKS[check](random.Random(f"{check}:{number}"))
    except entries.WrongAnswerError as error:
        return f"failed: {error}"
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"failed: {type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"


def soak(checks: Sequence[str], minutes: float) -> Counter[tuple[str, str]]:
    """Trials of all checks in turn until the time is over; at least one round."""
    counts: Counter[tuple[str, str]] = Counter()
    deadline, round_number = time.monotonic() + 60 * minutes, 0
    while round_number == 0 or time.monotonic() < deadline:
        for check in checks:
            share = SHARES.get(check, 1)
            for number in range(round_number * share, (round_number + 1) * share):
                outcome, _, why = trial(check, number).partition(": ")
                counts[check, outcome] += 1
                if outcome == "failed":
                    print(f"{check}:{number} failed: {why}", flush=True)
                if round_number and time.monotonic() > deadline:
                    return counts
        round_number += 1
        print(f"{round_number} round(s), {sum(counts.values()):,} trials", flush=True)
    return counts


def table(counts: Counter[tuple[str, str]]) -> str:
    """The counts in Markdown, a line for each check."""
    lines = ["| check | trials | outcomes |", "|---|--:|---|"]
    for check in dict.fromkeys(check for check, _ in counts):
        found = {outcome: count for (name, outcome), count in sorted(counts.items()) if name == check}
        outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in found.items())
        lines.append(f"| {check} | {sum(found.values()):,} | {outcomes} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks, and print how many trials had which outcome."""
    made = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    made.add_argument("--minutes", type=float, default=1.0, help="time to run; at least one round of all checks")
    made.add_argument("--each", action="store_true", help="give the minutes to each check, one after the other")
    made.add_argument("--checks", nargs="+", choices=list(CHECKS), default=list(CHECKS))
    made.add_argument("--replay", metavar="CHECK:NUMBER", help="run one trial alone, with its traceback")
    options = made.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.replay:
        check, _, number = options.replay.partition(":")
        print(CHECKS[check](random.Random(f"{check}:{int(number)}")))
        return 0
    together = [[check] for check in options.checks] if options.each else [options.checks]
    counts: Counter[tuple[str, str]] = Counter()
    for checks in together:
        counts += soak(checks, options.minutes)
    print(table(counts))
    return int(any(outcome == "failed" for _, outcome in counts))


if __name__ == "__main__":
    sys.exit(main())
