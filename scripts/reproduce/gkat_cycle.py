"""GKAT's depth versus density (Choromanski et al., ICML 2022, arXiv:2107.07999, Section 5.1.2, Table 5, Figure 7).

    python scripts/reproduce/gkat_cycle.py --quick      # a trial of a few minutes
    python scripts/reproduce/gkat_cycle.py              # 4,096 graphs, 100 epochs of GKAT, 3 seeds, 2 to 6 layers

GKAT has two layers; GAT, GCN and SGC have two to six, all with the paper's sizes and about 242 parameters. Each gets
the time of GKAT, as in gkat_motif.py. The same command continues an interrupted one and keeps finished runs.
"""

from _gkat import CYCLE, GAT_HEADS, METHODS, comparison

DEPTHS = ["", *(f", {layers} layers" for layers in GAT_HEADS if layers > 2)]
ROWS = ["GKAT", *(f"{method}{depth}" for method in METHODS[1:] for depth in DEPTHS)]
COMPARISON = comparison(__doc__, "gkat_cycle", [CYCLE.name], ROWS)


if __name__ == "__main__":
    COMPARISON.start()
