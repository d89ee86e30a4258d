"""GKAT's induced cycles (Choromanski et al., ICML 2022, arXiv:2107.07999, Section 5.1.2, Tables 4 and 5).

    python scripts/reproduce/gkat_cycle.py --quick      # a trial of a few minutes
    python scripts/reproduce/gkat_cycle.py              # 4,096 graphs, 100 epochs of GKAT, 3 seeds

The other methods get the time that 100 epochs of GKAT take. A run that was stopped goes on where it was.
"""

from __future__ import annotations

from _gkat import (
    METHODS,
    baseline,
    cycle_gkat,
    fresh_copy,
    num_parameters,
    parser,
    remembered,
    row_of,
    train_graphs,
    write_report,
)

from pyg_topomask.datasets import InducedCycleDataset
from pyg_topomask.transforms import AddRandomWalks

WALK_LENGTH, NUM_WALKS = 6, 50
PUBLISHED = {"GKAT": 83.6, "GAT": 77.0, "GCN": 63.2, "SGC": 56.6}


def main() -> None:
    """Train every method, the baselines at each depth."""
    made = parser(__doc__.splitlines()[0], "gkat_cycle", seeds=3)
    made.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    made.add_argument("--layers", nargs="+", type=int, default=[2], help="depths of GAT, GCN and SGC, 2 to 6")
    made.add_argument("--epochs", type=int, default=100, help="epochs of GKAT, whose time the others get")
    made.add_argument("--root", default="results/data", help="folder of the generated graphs")
    options = made.parse_args()
    num_graphs, epochs, seeds = (256, 2, 1) if options.quick else (4096, options.epochs, options.seeds)
    folder = options.out / ("quick" if options.quick else f"runs-{epochs}")
    data = list(InducedCycleDataset(f"{options.root}/cycle", num_graphs=num_graphs))
    walk = AddRandomWalks(NUM_WALKS, WALK_LENGTH, 0.0, independent=False, seed=0)
    walked, cut = [walk(graph) for graph in data], num_graphs * 3 // 4
    width = data[0].x.size(1)
    ours = cycle_gkat(width, WALK_LENGTH)
    rows, given = [], {}
    for method in options.methods:
        for depth in [2] if method == "GKAT" else options.layers:
            model = ours if method == "GKAT" else baseline(method, width, num_parameters(ours), depth)
            runs = []
            for seed in range(seeds):
                settings = {"patience": 80, "lr": 5e-3, "weight_decay": 1e-5, "epochs": epochs}
                if method != "GKAT" and seed in given:
                    settings |= {"epochs": 2000, "max_seconds": given[seed]}
                graphs = walked if method == "GKAT" else data
                file, parts = folder / f"{method}-{depth}-{seed}.json", (graphs[:cut], graphs[cut:])
                runs.append(remembered(file, fresh_copy(model, seed), train_graphs, *parts, **settings))
                if method == "GKAT":
                    given[seed] = runs[-1]["seconds"]
            title = f"induced cycle, {depth} layers"
            rows.append(row_of(title, method, PUBLISHED[method] if depth == 2 else None, runs))
            note = f"{num_graphs:,} graphs; the time of {epochs} epochs of GKAT, validation accuracy at its best."
            write_report("gkat_cycle", rows, note, options)
    print((options.out / "gkat_cycle.md").read_text())


if __name__ == "__main__":
    main()
