"""Table 1 of the Primphormer paper, the Long Range Graph Benchmark, and other attentions with the same time.

Each config of configs/primphormer is trained for every seed, and the table shows its test metric at the best validation
epoch next to the published one. With --minutes M, each of --methods is trained on --datasets for the number of epochs
that fits into M minutes, estimated on a sample, with a schedule of that length. Only the attention differs; the stack
(GatedGCN and the attention), encodings and optimiser are the same. The same command continues an interrupted one.

Run: python scripts/reproduce/primphormer_lrgb.py [--quick | --results docs/results] [--datasets …] [--seeds 4]
     python scripts/reproduce/primphormer_lrgb.py --minutes 10 --datasets peptides-func --seeds 1 \
         --methods Primphormer Transformer Exphormer GRF KMIP
"""

from _tables import Published, parser, read_options, reproduce, start
from _tables import lines as lines
from _tables import plot as plot


def published(title: str, metric: str, *figures: str) -> Published:
    """A data set with the figures of Primphormer, Transformer, Exphormer and k-MIP, as far as they are known."""
    return Published(title, metric, dict(zip(("Primphormer", "Transformer", "Exphormer", "KMIP"), figures)))


TABLE = {
    "pascalvoc-sp": published("PascalVOC-SP", "f1", "0.3980 ± 0.0075", "0.3748 ± 0.0109", "0.3975 ± 0.0037"),
    "coco-sp": published("COCO-SP", "f1", "0.3438 ± 0.0046", "0.3412 ± 0.0044", "0.3455 ± 0.0009"),
    "peptides-func": published(
        "Peptides-func", "ap", "0.6612 ± 0.0065", "0.6535 ± 0.0041", "0.6527 ± 0.0043", "0.6627 ± 0.0044"
    ),
    "peptides-struct": published("Peptides-struct", "mae", "0.2495 ± 0.0008", "0.2500 ± 0.0005", "0.2481 ± 0.0007"),
    "pcqm-contact": published("PCQM-Contact", "mrr", "0.3757 ± 0.0079", "0.3337 ± 0.0006", "0.3637 ± 0.0020"),
}
"""Results from the Primphormer paper's Table 1 (Transformer: its GraphGPS row) and from the k-MIP paper."""


def main() -> None:
    reproduce(TABLE, read_options(parser(__doc__, list(TABLE), "primphormer_lrgb")))


if __name__ == "__main__":
    start(main)
