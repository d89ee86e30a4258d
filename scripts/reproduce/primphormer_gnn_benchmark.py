"""Table 2 of the Primphormer paper: superpixels, function call graphs and stochastic block models.

Each config of configs/primphormer is trained for every seed, and the table shows its test accuracy at the best
validation epoch next to the published one. The same command continues an interrupted one.

Run: python scripts/reproduce/primphormer_gnn_benchmark.py [--quick | --results docs/results] [--datasets …] [--seeds 4]
"""

from _tables import Published, parser, read_options, reproduce, start
from _tables import lines as lines
from _tables import plot as plot

TABLE = {
    "cifar10": Published("CIFAR10", "accuracy", {"Primphormer": "74.13 ± 0.241"}),
    "malnet-tiny": Published("MalNet-Tiny", "accuracy", {"Primphormer": "93.62 ± 0.242"}),
    "mnist": Published("MNIST", "accuracy", {"Primphormer": "98.56 ± 0.042"}),
    "cluster": Published("CLUSTER", "accuracy-SBM", {"Primphormer": "78.01 ± 0.162"}),
    "pattern": Published("PATTERN", "accuracy-SBM", {"Primphormer": "86.68 ± 0.056"}),
}


def main() -> None:
    options = read_options(parser(__doc__, list(TABLE), "primphormer_gnn_benchmark"))
    reproduce(TABLE, options)


if __name__ == "__main__":
    start(main)
