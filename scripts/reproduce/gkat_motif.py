"""GKAT's motifs and induced cycles (Choromanski et al., ICML 2022, arXiv:2107.07999, Section 5.1 and Table 4).

    python scripts/reproduce/gkat_motif.py --quick          # a trial of a few minutes
    python scripts/reproduce/gkat_motif.py                  # 6 tasks, 4,096 graphs, 100 epochs of GKAT, 3 seeds
    python scripts/reproduce/gkat_motif.py --epochs 500     # the whole training of Figure 6

As in Table 4, the other methods get the time that 100 epochs of GKAT take: GKAT is trained first, and its seconds are
their budget. A method with cheaper epochs does more of them, until neither its validation loss nor its accuracy has
improved for 80 epochs. No choice looks at the test set, an eighth of the graphs. Times are processor time of one
thread, so that other programs do not change the budget.
The same command continues an interrupted one and keeps finished runs.
"""

from _gkat import METHODS, TASKS, comparison

COMPARISON = comparison(__doc__, "gkat_motif", TASKS, [*METHODS, "GKAT-0"])


if __name__ == "__main__":
    COMPARISON.start()
