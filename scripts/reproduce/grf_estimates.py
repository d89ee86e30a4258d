"""Error of the GRF mask's estimates at equal work (Reid et al. 2024, arXiv:2410.03462, Eq. 10), by graph and scheme.

    python scripts/reproduce/grf_estimates.py --quick       # a trial
    python scripts/reproduce/grf_estimates.py

Equal work means an equal number of walkers per node: 16 in one table, or 8 in each of two independent tables. The error
is the root mean square over draws and entries, relative to that of the exact mask, on and off the diagonal. "pairs" is
the number per node of non-zeros of the estimated mask, on which attention computes. The symmetrised estimate is the
mean of the two-table mask and its transpose. The modulation function is that of exp(W), and walks have up to 4 hops.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.utils import barabasi_albert_graph, coalesce, grid, to_dense_adj

from pyg_topomask.nn import GRFMask
from pyg_topomask.transforms import AddRandomWalks

NUM_WALKS = 16
MAX_LENGTH = 4


def graphs(size: int) -> dict[str, Data]:
    """One graph of each family with about ``size`` nodes."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(size, 3, generator=generator)
    near = torch.cdist(points, points).topk(5, largest=False).indices[:, 1:]
    knn = torch.stack([torch.arange(size).repeat_interleave(4), near.flatten()])
    side = round(size**0.5)
    ring = torch.arange(size)
    bonds = torch.stack([ring, (ring + 1) % size])  # a ring of atoms with bridges between every sixth
    bridges = torch.stack([ring[::6], (ring[::6] + 5) % size])
    torch.manual_seed(0)
    found = {
        "kNN": knn,
        "grid": grid(side, side)[0],
        "molecule": torch.cat([bonds, bridges], 1),
        "power law": barabasi_albert_graph(size, 2),
    }
    return {
        name: Data(edge_index=_simple(index), num_nodes=side**2 if name == "grid" else size)
        for name, index in found.items()
    }


def _simple(edge_index: Tensor) -> Tensor:
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    return coalesce(torch.cat([edge_index, edge_index.flip(0)], 1))


def errors(data: Data, diagonal: str, scheme: str, draws: int) -> tuple[float, float, float]:
    """Relative error off and on the diagonal, and pairs per node."""
    shared = diagonal in ("shared", "corrected")
    mask = GRFMask(max_length=MAX_LENGTH, diagonal="independent" if diagonal == "symmetrised" else diagonal)
    transform = AddRandomWalks(
        NUM_WALKS if shared else NUM_WALKS // 2, MAX_LENGTH, 0.5, scheme, diagonal=mask.diagonal, seed=0
    )
    adj = to_dense_adj(data.edge_index, max_num_nodes=data.num_nodes)[0].double()
    scale = adj.sum(1).clamp(min=1).rsqrt()
    step, f = scale[:, None] * adj * scale, mask.modulation.detach().double()
    features = sum(f[k] * torch.linalg.matrix_power(step, k) for k in range(MAX_LENGTH + 1))
    exact, eye = features @ features.t(), torch.eye(data.num_nodes, dtype=torch.bool)
    squares, pairs = torch.zeros(2), 0.0
    for epoch in range(draws):
        transform.set_epoch(epoch)
        with torch.no_grad():
            found = mask(Batch.from_data_list([transform(data)])).to_dense().double()
        if diagonal == "symmetrised":
            found = (found + found.t()) / 2
        error = (found - exact).square()
        squares += torch.stack([error[~eye].sum(), error[eye].sum()])
        pairs += float((found != 0).sum()) / data.num_nodes
    whole = torch.stack([exact[~eye].square().sum(), exact[eye].square().sum()])
    off, on = (squares / draws / whole).sqrt().tolist()
    return off, on, pairs / draws


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small graph and few draws")
    options = parser.parse_args(argv)
    size, draws = (64, 5) if options.quick else (400, 50)
    print(f"{'graph':10} {'estimate':12} {'scheme':11} {'off':>7} {'diagonal':>9} {'pairs':>6}")
    for name, data in graphs(size).items():
        for scheme in ("iid", "antithetic", "repelling"):
            for diagonal in ("independent", "symmetrised", "corrected", "shared"):
                off, on, pairs = errors(data, diagonal, scheme, draws)
                print(f"{name:10} {diagonal:12} {scheme:11} {off:7.1%} {on:9.1%} {pairs:6.1f}")


if __name__ == "__main__":
    main()
