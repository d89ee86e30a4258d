"""k-MIP attention compared with full attention and other exact searches, in one run.

Setting: N = 31,623 nodes, one head, d_k = 10, k = 10, values of width 10. Data: "gauss" has standard normal queries and
keys; in "clust0.3", both lie around the same √N standard normal centres with deviation 0.3. Rows:

- chosen          the engine that the library chooses
- torch           the library's search in plain torch
- sdpa            PyTorch's scaled-dot-product attention over all keys
- sdpa, padded    the same with widths padded from 10 to 16 by zeros, which is exact and faster

For N = 3,162 to 31,623, the search alone is compared with FAISS (IndexFlatIP) and KeOps (argKmin) if they are installed
(pip install faiss-cpu pykeops). Unlike these, our search also resolves ties, which takes time. The last lines are the
times of the stages.

Run: python scripts/bench/kmip.py [--quick] [--out results/bench]
"""

import importlib
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from _measure import bench_parser, both_clocks, in_fresh_process, machine, save_json
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from pyg_topomask.ops import topk_attention
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.topk import cpp
from pyg_topomask.ops.topk.backends import Problem, find

WIDTH = 10
TOPK = 10
DATA = ("gauss", "clust0.3")


def inputs(kind: str, num_nodes: int, seed: int = 0) -> list[Tensor]:
    """Queries, keys and values, shape ``[N, 1, 10]``, and the gradient of the output."""
    gen = torch.Generator().manual_seed(seed)
    q, k, v, grad = (torch.randn(num_nodes, 1, WIDTH, generator=gen) for _ in range(4))
    if kind != "gauss":
        centre = torch.randn(int(num_nodes**0.5), 1, WIDTH, generator=gen)
        q, k = (centre[torch.randint(len(centre), (num_nodes,), generator=gen)] + 0.3 * x for x in (q, k))
    return [*(x.requires_grad_() for x in (q, k, v)), grad]


def full(q: Tensor, k: Tensor, v: Tensor, width: int = WIDTH) -> Tensor:
    """Full softmax attention, with widths padded by zeros."""
    heads = (pad(x, (0, width - x.size(-1))).transpose(0, 1)[None] for x in (q, k, v))
    return scaled_dot_product_attention(*heads, scale=WIDTH**-0.5)[0].transpose(0, 1)[..., :WIDTH]


def problem_of(tensors: list[Tensor]) -> Problem:
    """The search of one head in one graph."""
    q, k = (x.detach().transpose(0, 1).contiguous() for x in tensors[:2])
    return Problem(q, k, [0, q.size(1)], [0, k.size(1)], TOPK)


def methods(tensors: list[Tensor]) -> dict[str, Callable[..., Tensor]]:
    """Functions that compute attention of ``(q, k, v)`` by every method that can be used here."""
    ours = {"chosen": "auto", "torch": "torch"}
    found = {name: partial(topk_attention, topk=TOPK, backend=backend) for name, backend in ours.items()}
    return {**found, "sdpa": full, "sdpa, padded": partial(full, width=16)}


def forward(attend: Callable[..., Tensor], tensors: list[Tensor]) -> Tensor:
    """One forward pass without a graph."""
    with torch.no_grad():
        return attend(*tensors[:3])


def step(attend: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """One forward and backward pass."""
    return list(torch.autograd.grad(attend(*tensors[:3]), tensors[:3], tensors[3]))


def compare(kind: str, num_nodes: int, repeats: int) -> dict[str, Any]:
    """Times of every method on one data set in one process, and the share of keys that the tree visits."""
    tensors, passes = inputs(kind, num_nodes), {"forward": forward, "forward + backward": step}
    calls = {
        (name, what): partial(call, attend, tensors)
        for name, attend in methods(tensors).items()
        for what, call in passes.items()
    }
    times = both_clocks(calls, repeats)
    rows = {name: {what: times[name, what] for what in passes} for name, _ in calls}
    share = None if loader.missing("topk") else cpp.search(*problem_of(tensors), 0, 1.0)[1]
    return {"num_nodes": num_nodes, "milliseconds": rows, "tree visits": share}


def faiss_search(q: Tensor, k: Tensor) -> Any:
    """Keys ``[N, 10]`` found by FAISS's exact flat index."""
    faiss = importlib.import_module("faiss")
    faiss.omp_set_num_threads(torch.get_num_threads())
    flat = faiss.IndexFlatIP(k.size(1))
    flat.add(k.numpy())
    return torch.from_numpy(flat.search(q.numpy(), TOPK)[1])


def keops_search(q: Tensor, k: Tensor) -> Any:
    """Keys ``[N, 10]`` found by KeOps's reduction, as in the authors' code."""
    lazy = importlib.import_module("pykeops.torch").LazyTensor
    return (-(lazy(q[:, None].contiguous()) | lazy(k[None].contiguous()))).argKmin(TOPK, dim=1)


PEERS = {"faiss": ("faiss", faiss_search), "keops": ("pykeops", keops_search)}
"""Name -> its package and search."""


def missing_peers() -> dict[str, str]:
    """The peers that are left out, with reasons."""
    return {name: "it is not installed" for name, (package, _) in PEERS.items() if find_spec(package) is None}


def searches(kind: str, num_nodes: int, repeats: int) -> dict[str, Any]:
    """Times of the search alone, ours and the peers' in turns in one process, and the ratios of ours to theirs."""
    problem = problem_of(inputs(kind, num_nodes))
    q, k = problem.q[0], problem.k[0]
    calls: dict[str, Callable[[], Any]] = {"ours": lambda: find(problem, "auto")[0]}
    missing = missing_peers()
    calls |= {name: lambda f=f: f(q, k) for name, (_, f) in PEERS.items() if name not in missing}
    found = {name: call().sort(dim=1)[0] for name, call in calls.items()}  # warm-up: load libraries, compile formulas
    median = both_clocks(calls, repeats, warmup=0)
    peers = [name for name in calls if name != "ours"]
    return {
        "milliseconds": median,
        "ours / peer": {name: {c: median["ours"][c] / median[name][c] for c in median[name]} for name in peers},
        "share of equal keys": {name: float((found[name] == found["ours"]).float().mean()) for name in peers},
        "left out": missing,
    }


def stages(kind: str, num_nodes: int) -> dict[str, float]:
    """Milliseconds of the projection, of building the tree, of the search, of the attention, and of the backward pass.

    They are processor times. The tree's time is that of a search for a single query. The others are differences of
    longer calls.
    """
    tensors = inputs(kind, num_nodes)
    x = torch.cat([y.detach()[:, 0] for y in tensors[:3]], dim=1)
    project = torch.nn.Linear(3 * WIDTH, 3 * WIDTH)
    problem, attend = problem_of(tensors), partial(topk_attention, topk=TOPK)
    one = problem._replace(q=problem.q[:, :1].contiguous(), ptr_q=[0, 1])
    calls: dict[str, Callable[[], Any]] = {
        "projection": lambda: project(x),
        "tree": (lambda: None) if loader.missing("topk") else (lambda: cpp.search(*one, 5_000, 1.0)),
        "search": lambda: find(problem, "auto"),
        "forward": lambda: forward(attend, tensors),
        "training": lambda: step(attend, tensors),
    }
    ms = {name: times["cpu"] for name, times in both_clocks(calls, 3).items()}
    return {
        "projection": ms["projection"],
        "tree": ms["tree"],
        "search": max(ms["search"] - ms["tree"], 0.0),
        "softmax and gather": max(ms["forward"] - ms["search"], 0.0),
        "backward": max(ms["training"] - ms["forward"], 0.0),
    }


def print_comparison(kind: str, result: dict[str, Any]) -> None:
    """Print one line for each method."""
    visits = result["tree visits"] or 1
    print(
        f"{kind}, N = {result['num_nodes']:,}: the tree visits {visits:.1%} of the keys. Milliseconds of wall time "
        "(CPU time of all threads), each followed by its ratio to the engine that the library chooses"
    )
    chosen = result["milliseconds"]["chosen"]
    for name, row in result["milliseconds"].items():
        parts = [
            f"{what} {times['wall']:9.1f} ({times['cpu']:9.1f}) "
            f"{times['wall'] / chosen[what]['wall']:6.2f} ({times['cpu'] / chosen[what]['cpu']:6.2f})"
            for what, times in row.items()
        ]
        print(f"{name:13s} " + "   ".join(parts))


def print_searches(kind: str, num_nodes: int, result: dict[str, Any]) -> None:
    """Print one line with our milliseconds, and for each peer its milliseconds and the ratio of ours to them."""
    ms = {name: times["wall"] for name, times in result["milliseconds"].items()}
    line = f"search, {kind:8s} N {num_nodes:7,d}  ours {ms['ours']:9.1f} ms"
    for name, ratio in result["ours / peer"].items():
        line += f"   {name} {ms[name]:9.1f} ms, ours / {name} {ratio['wall']:5.2f} (CPU {ratio['cpu']:5.2f})"
    print(line)


def main() -> None:
    parser = bench_parser(__doc__, "fewer nodes, about half a minute")
    parser.add_argument("--num-nodes", type=int, help="number of nodes (31,623, or 3,162 with --quick)")
    parser.add_argument("--repeats", type=int, default=3, help="timed calls of each row")
    options = parser.parse_args()
    num_nodes = options.num_nodes or (3_162 if options.quick else 31_623)
    sizes = sorted({size for size in (3_162, 10_000) if size < num_nodes} | {num_nodes})
    report: dict[str, Any] = {"machine": machine(), "num_nodes": num_nodes}
    report |= {"comparison": {}, "searches": {}, "stages": {}}
    for name, reason in missing_peers().items():
        print(f"{name} is left out: {reason}")
    for kind in DATA:
        report["comparison"][kind] = in_fresh_process(compare, kind, num_nodes, options.repeats)
        print_comparison(kind, report["comparison"][kind])
        report["searches"][kind] = {n: in_fresh_process(searches, kind, n, options.repeats) for n in sizes}
        for size, result in report["searches"][kind].items():
            print_searches(kind, size, result)
        report["stages"][kind] = in_fresh_process(stages, kind, num_nodes)
        parts = (f"{stage} {time:.1f}" for stage, time in report["stages"][kind].items())
        print(f"stages, {kind}, N = {num_nodes:,}, ms: " + ", ".join(parts))
    save_json(options.out / "kmip.json", report)


if __name__ == "__main__":
    main()
