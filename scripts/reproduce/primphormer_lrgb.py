"""Table 1 of the Primphormer paper, the Long Range Graph Benchmark, and other attentions in the same time.

Each config of configs/primphormer is trained for every seed, and the table shows its test metric at the best validation
epoch next to the published one. Other --methods are trained for as many epochs as Primphormer, and for as many as take
its time, with a schedule of that length. On Peptides-func, only the attention differs; the stack (GatedGCN and the
attention), encodings and optimiser are the same. On other data, each method has the settings of its own config. The
same command continues an interrupted one.

Run: python scripts/reproduce/primphormer_lrgb.py [--quick | --results docs/results] [--datasets …] [--runs 4]
     python scripts/reproduce/primphormer_lrgb.py --epochs 9 --datasets peptides-func --runs 1 \
         --methods Primphormer Transformer Exphormer GRF KMIP
"""

from _primphormer import Published, comparison


def published(metric: str, *figures: str) -> Published:
    """A data set with the figures of Primphormer, Transformer, Exphormer and k-MIP, as far as they are known."""
    return Published(metric, dict(zip(("Primphormer", "Transformer", "Exphormer", "KMIP"), figures)))


TABLE = {
    "pascalvoc-sp": published("f1", "0.3980 ± 0.0075", "0.3748 ± 0.0109", "0.3975 ± 0.0037", "0.3969 ± 0.0092"),
    "coco-sp": published("f1", "0.3438 ± 0.0046", "0.3412 ± 0.0044", "0.3455 ± 0.0009", "0.3556 ± 0.0045"),
    "peptides-func": published("ap", "0.6612 ± 0.0065", "0.6535 ± 0.0041", "0.6527 ± 0.0043", "0.6627 ± 0.0044"),
    "peptides-struct": published("mae", "0.2495 ± 0.0008", "0.2500 ± 0.0005", "0.2481 ± 0.0007", "0.2562 ± 0.0037"),
    "pcqm-contact": published("mrr", "0.3757 ± 0.0079", "0.3337 ± 0.0006", "0.3637 ± 0.0020"),
}
"""Results from the Primphormer paper's Table 1 (Transformer: its GraphGPS row) and from the k-MIP paper."""

COMPARISON = comparison(__doc__, "primphormer_lrgb", TABLE)


if __name__ == "__main__":
    COMPARISON.start()
