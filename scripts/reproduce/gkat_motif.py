"""GKAT's motifs and induced cycles (Choromanski et al., ICML 2022, arXiv:2107.07999, Section 5.1 and Table 4).

    python scripts/reproduce/gkat_motif.py --quick          # a trial of a few minutes
    python scripts/reproduce/gkat_motif.py                  # 6 tasks, 4,096 graphs, 100 epochs of GKAT, 3 seeds
    python scripts/reproduce/gkat_motif.py --epochs 500     # the whole training of Figure 6

As in Table 4, the other methods get the time that 100 epochs of GKAT take: GKAT is trained first, and its seconds are
their budget. A method with cheaper epochs does more of them, until neither its validation loss nor its accuracy has
improved for 80 epochs. No choice looks at the test set, an eighth of the graphs. Times are processor time of one
thread, so that other programs do not change the budget.
Finished runs are kept, so the same command continues; a run is repeated if its budget has changed.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from _gkat import lines as lines
from _gkat import plot as plot
from _gkat import write_report
from _gkat_synthetic import TASKS, compare, described, quickened, synthetic_parser
from _tables import finish, start


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """The number of tasks on which GKAT's mean is above that of each other method, in words."""
    text = ""
    for key, when in (("values", "the same time"), ("of_equal_epochs", "as many epochs")):
        means, parts = {(row["title"], row["method"]): fmean(row[key]) for row in rows}, []
        for other in dict.fromkeys(method for _, method in means if method != "GKAT"):
            gaps = [means[title, "GKAT"] - mean for (title, method), mean in means.items() if method == other]
            parts.append(f"{other} on {sum(gap > 0 for gap in gaps)} of {len(gaps)}")
        text += f" In {when} GKAT is more accurate than {', '.join(parts)} tasks." if parts else ""
    return text


def main() -> None:
    """Train every method on every task."""
    made = synthetic_parser(__doc__, "gkat_motif")
    names = [task.name for task in TASKS]
    made.add_argument("--tasks", nargs="+", choices=names, default=names, help="columns of Table 4")
    options = quickened(made)
    rows: list[dict[str, Any]] = []
    for task in TASKS:
        for row in compare(task, options) if task.name in options.tasks else ():
            rows.append(row)
            report = write_report(rows, described(rows, options) + verdict(rows), options)
    finish(report, lines, plot, options)


if __name__ == "__main__":
    start(main)
