"""GKAT's accuracy by the length of its walks (Choromanski et al., ICML 2022, arXiv:2107.07999, Section A.2, Figure 9).

    python scripts/reproduce/gkat_lengths.py --quick      # a trial of a minute
    python scripts/reproduce/gkat_lengths.py              # 4,096 graphs, 100 epochs, 3 seeds; 40 minutes on one core

GKAT is that of gkat_cycle.py, on the same graphs with induced cycles; there, walks have up to 6 hops. The same command
continues an interrupted one and keeps finished runs.
"""

from _gkat import LENGTHS, comparison

COMPARISON = comparison(__doc__, "gkat_lengths", [task.name for task in LENGTHS], ["GKAT"])


if __name__ == "__main__":
    COMPARISON.start()
