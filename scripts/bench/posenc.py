"""Speed of the encodings compared with PyG's transforms, and a comparison of their values, in one run.

- 1,000 graphs of LRGB's Peptides-func from $TOPOMASK_DATA; k = 10 eigenvectors, 20 steps
- one graph of 5,000 nodes with 6 neighbours per node on average and 16 steps, so that sparse powers fill in
- one graph of 20,000 nodes, which PyG's transform does not finish

Run: python scripts/bench/posenc.py [--quick] [--out results/bench]
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from _measure import bench_parser, both_clocks, in_fresh_process, machine, markdown, milliseconds, peptides, save_json
from torch_geometric.data import Data
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE
from torch_geometric.utils import erdos_renyi_graph, get_laplacian, to_dense_adj

from pyg_topomask.transforms import AddHeatDiagonalEncoding, AddLaplacianEncoding, AddRandomWalkEncoding, precompute

FREQUENCIES, STEPS, LARGE_STEPS = 10, 20, 16


def seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    """Wall seconds of a call, and its result."""
    begin = time.perf_counter()
    result = function()
    return time.perf_counter() - begin, result


def many_graphs(count: int, repeats: int) -> dict[str, Any]:
    """Both encodings of many small graphs, by PyG and by us, in turns."""
    graphs = peptides(count)
    if graphs is None:
        raise SystemExit("error: Peptides-func is missing; set the environment variable TOPOMASK_DATA")

    def pyg(transform: Any) -> list[Data]:
        return [transform(data.clone()) for data in graphs]

    plans: dict[str, tuple[Callable[[], Any], ...]] = {
        "Laplacian": (
            lambda: pyg(AddLaplacianEigenvectorPE(FREQUENCIES, is_undirected=True)),
            lambda: precompute(graphs, AddLaplacianEncoding(FREQUENCIES + 1), cache=False),
        ),
        "random walk": (
            lambda: pyg(AddRandomWalkPE(STEPS)),
            lambda: precompute(graphs, AddRandomWalkEncoding(range(1, STEPS + 1)), cache=False),
        ),
    }
    rows: dict[str, Any] = {"graphs": count}
    for name, (theirs, ours) in plans.items():
        times = both_clocks({"PyG": theirs, "ours": ours}, repeats)
        gap = eigen_gap if name == "Laplacian" else walk_gap
        rows[name] = {
            "PyG s": times["PyG"]["wall"] / 1e3,
            "ours s": times["ours"]["wall"] / 1e3,
            "times faster": times["PyG"]["wall"] / times["ours"]["wall"],
            "largest difference": max(gap(a, b) for a, b in zip(theirs()[:200], ours()[:200])),
        }
    return rows


def walk_gap(theirs: Data, ours: Data) -> float:
    """Largest difference of return probabilities."""
    return float((theirs.random_walk_pe - ours.random_walk_diagonal).abs().max())


def eigen_gap(theirs: Data, ours: Data) -> float:
    """Largest distance of PyG's and our eigenvectors from the exact eigenspaces, independent of sign and basis."""
    index, weight = get_laplacian(ours.edge_index, normalization="sym", num_nodes=ours.num_nodes)
    values, vectors = torch.linalg.eigh(to_dense_adj(index, None, weight, ours.num_nodes)[0].double())
    worst = 0.0
    for number, pyg_vector in enumerate(theirs.laplacian_eigenvector_pe.double().t(), 1):
        space = vectors[:, (values - values[number]).abs() < 1e-3]
        for vector in (pyg_vector, ours.laplacian_vectors[:, number].double()):
            worst = max(worst, float((vector - space @ (space.t() @ vector)).norm()))
    return worst


def one_graph(num_nodes: int, compare: bool) -> dict[str, Any]:
    """Times of the encodings on one large graph."""
    torch.manual_seed(0)
    data = Data(edge_index=erdos_renyi_graph(num_nodes, 6 / num_nodes), num_nodes=num_nodes)
    ours = AddRandomWalkEncoding(range(1, LARGE_STEPS + 1))
    found = ours(data)  # loads what is compiled
    time_ours = milliseconds(lambda: ours(data), 3, 0)["wall"] / 1e3
    row: dict[str, Any] = {"num_nodes": num_nodes, "ours s": time_ours}
    row["Laplacian, ours s"] = seconds(lambda: AddLaplacianEncoding(FREQUENCIES + 1)(data))[0]
    row["heat, ours s"] = seconds(lambda: AddHeatDiagonalEncoding([1.0, 2.0, 5.0])(data))[0]
    if compare:
        row["PyG s"], theirs = seconds(lambda: AddRandomWalkPE(LARGE_STEPS)(data.clone()))
        row["times faster"] = row["PyG s"] / time_ours
        row["largest difference"] = walk_gap(theirs, found)
    return row


def main() -> None:
    options = bench_parser(__doc__, "fewer and smaller graphs, about half a minute").parse_args()
    count, large, huge = (200, 2500, 6_000) if options.quick else (1000, 5000, 20_000)
    report: dict[str, Any] = {
        "machine": machine(),
        "many graphs": in_fresh_process(many_graphs, count, 1 if options.quick else 3),
        "one graph": in_fresh_process(one_graph, large, True),
        "huge graph": in_fresh_process(one_graph, huge, False),
    }
    many = report["many graphs"]
    rows = {f"{count} graphs, {name}": many[name] for name in ("Laplacian", "random walk")}
    rows[f"{large} nodes, random walk"] = report["one graph"]
    cells = [
        (name, *(f"{row[key]:.2f}" for key in ("PyG s", "ours s", "times faster")), f"{row['largest difference']:.1e}")
        for name, row in rows.items()
    ]
    print(*markdown("encodings | PyG, s: | ours, s: | times faster: | largest difference:", cells), sep="\n")
    last = report["huge graph"]
    print(
        f"{huge} nodes: random walk {last['ours s']:.2f} s; "
        f"Laplacian {last['Laplacian, ours s']:.2f} s, heat {last['heat, ours s']:.2f} s"
    )
    save_json(options.out / "posenc.json", report)


if __name__ == "__main__":
    main()
