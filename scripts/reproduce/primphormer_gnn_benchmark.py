"""Table 2 of the Primphormer paper: superpixels, function call graphs and stochastic block models.

Each config of configs/primphormer is trained for every seed, and the table shows its test accuracy at the best
validation epoch next to the published one. The same command continues an interrupted one.

Run: python scripts/reproduce/primphormer_gnn_benchmark.py [--quick | --results docs/results] [--datasets …] [--runs 4]
"""

from _primphormer import Published, comparison

TABLE = {
    "cifar10": Published("accuracy", {"Primphormer": "74.13 ± 0.241"}),
    "malnet-tiny": Published("accuracy", {"Primphormer": "93.62 ± 0.242"}),
    "mnist": Published("accuracy", {"Primphormer": "98.56 ± 0.042"}),
    "cluster": Published("accuracy-SBM", {"Primphormer": "78.01 ± 0.162"}),
    "pattern": Published("accuracy-SBM", {"Primphormer": "86.68 ± 0.056"}),
}

COMPARISON = comparison(__doc__, "primphormer_gnn_benchmark", TABLE)


if __name__ == "__main__":
    COMPARISON.start()
