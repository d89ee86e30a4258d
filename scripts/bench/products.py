"""Products with sparse matrices, and linear attention under masks of walks that meet at hubs, on one thread.

- ``product``  `spmm` of N rows with 16 entries each, forward and backward, by the number of columns, compared with
  torch's compressed-row product, which sorts the transposed matrix in each backward pass, and with gather and scatter
- ``heads``    the same with a matrix for each of 4 heads and 272 columns, compared with a product for each head
- ``hubs``     attention on a new batch of random graphs with hubs, forward and backward, by each path and by the
  path that is chosen: a constant mask, and a learned one for each head, 4 heads, 16 features and 16 channels

All forms take turns in one process. Each figure is the median processor time.

Run: python scripts/bench/products.py [--quick] [--out results/bench]
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _measure import bench_parser, in_turns, keep_memory, machine, save_json
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.utils import barabasi_albert_graph

from pyg_topomask.nn import GRFMask, RWGNKMask
from pyg_topomask.nn.mask.base import Mask
from pyg_topomask.ops import masked_linear_attention
from pyg_topomask.ops.sparse import Pattern, spmm
from pyg_topomask.transforms import AddRandomWalks

ENTRIES, COLUMNS, HEADS, FEATURES, CHANNELS = 16, (1, 8, 16, 64, 272), 4, 16, 16


def random_pattern(num_nodes: int, near: int = 500) -> Pattern:
    """Some entries in each row, at columns near the diagonal, as those of a batch of graphs."""
    row = torch.arange(num_nodes).repeat_interleave(ENTRIES)
    return Pattern(
        row, (row // near * near + torch.randint(near, row.shape)).clamp(max=num_nodes - 1), *[num_nodes] * 2
    )


def compressed_rows(pattern: Pattern, value: Tensor, x: Tensor) -> Tensor:
    """Torch's product, which has no gradient of the entries: only that of ``x`` is compared."""
    shape = pattern.num_rows, pattern.num_cols
    return torch.sparse_csr_tensor(pattern.rowptr, pattern.col, value, shape, check_invariants=False) @ x


def scattered(pattern: Pattern, value: Tensor, x: Tensor) -> Tensor:
    """The product as a gather and a scatter."""
    terms = value[:, None] * x.index_select(0, pattern.col)
    return x.new_zeros(pattern.num_rows, x.size(1)).index_add(0, pattern.row, terms)


def by_head(pattern: Pattern, value: Tensor, x: Tensor) -> Tensor:
    """A product for each head."""
    return torch.stack([spmm(pattern, value[:, h].contiguous(), x[:, h].contiguous()) for h in range(HEADS)], dim=1)


def compare(forms: dict[str, Callable[..., Tensor]], given: tuple[Any, ...], repeats: int) -> dict[str, float]:
    """Milliseconds of each form, forward and backward."""
    return in_turns({name: lambda form=form: form(*given).sum().backward() for name, form in forms.items()}, repeats)


def products(num_nodes: int, repeats: int) -> dict[str, dict[str, float]]:
    """The tables ``product`` and ``heads``."""
    pattern, found = random_pattern(num_nodes), {}
    for columns in COLUMNS:
        given = pattern, torch.rand(pattern.nnz), torch.randn(num_nodes, columns, requires_grad=True)
        forms = {"spmm": spmm, "compressed rows": compressed_rows, "gather and scatter": scattered}
        found[f"product, {columns} columns"] = compare(forms, given, repeats)
    value = torch.rand(HEADS, pattern.nnz).t().requires_grad_()
    x = torch.randn(num_nodes, HEADS, FEATURES * (CHANNELS + 1), requires_grad=True)
    return found | {"heads": compare({"spmm": spmm, "by head": by_head}, (pattern, value, x), repeats)}


def hubs(
    module: Mask, walk: AddRandomWalks, paths: tuple[str, ...], sizes: list[int], repeats: int
) -> dict[str, float]:
    """Milliseconds of attention on a new batch by each path, and by the path that is chosen."""
    np.random.seed(0)  # PyG draws these graphs from NumPy's global state
    graphs = [walk(Data(edge_index=barabasi_albert_graph(size, 2), num_nodes=size)) for size in sizes]
    shape = sum(sizes), HEADS, FEATURES
    q, k, v = (torch.rand(shape, requires_grad=True) for _ in range(3))

    def attend(path: str) -> None:
        batch = Batch.from_data_list(graphs)
        masked_linear_attention(q, k, v, module(batch), batch.batch, path).sum().backward()

    return in_turns({path: lambda path=path: attend(path) for path in ("auto", *paths)}, repeats)


def main() -> None:
    """Measure everything, print it and write the report."""
    options = bench_parser(__doc__ or "", "small sizes and few repeats: a trial").parse_args()
    torch.set_num_threads(1)
    keep_memory()
    torch.manual_seed(0)
    num_nodes, repeats = (400, 2) if options.quick else (16_384, 7)
    found = products(num_nodes, repeats)
    sizes = [60, 61] if options.quick else list(range(500, 516))
    kernel_walks = AddRandomWalks(16, 3, 0.0, independent=False, seed=0)
    settings = (RWGNKMask(max_length=3), kernel_walks, ("blocks", "pairwise", "factored"), sizes, repeats)
    found["hubs, constant mask"] = hubs(*settings)
    found["hubs, learned mask"] = hubs(GRFMask(HEADS), AddRandomWalks(seed=0), ("pairwise", "factored"), sizes, repeats)
    for title, times in found.items():
        print(f"{title}: " + ", ".join(f"{name} {value:.2f} ms" for name, value in times.items()))
    save_json(options.out / "products.json", {"machine": machine(), "quick": options.quick, "ms": found})


if __name__ == "__main__":
    main()
