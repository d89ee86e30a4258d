"""Masked attention on random problems, to compare two versions of the code:

    PYTHONPATH=BEFORE python scripts/compare_problems.py --out before.pt
    PYTHONPATH=AFTER python scripts/compare_problems.py --out after.pt
    python scripts/compare_problems.py --compare before.pt after.pt

A problem is a kernel, a mask of one of `KINDS` with learnable numbers, and a batch. It is run by ``path="auto"`` and by
every path by name; outputs and all gradients are stored, or the type of the error. Only public names are used.

Compared relative to the largest number of a tensor. Gradients that vanish by cancellation, such as that of the scale of
a mask, are compared relative to values times loss weights over the parameter. ``auto`` may change its mind: it is
compared with the nearest of the earlier paths. Where ``normalizer="signed"`` divides by a sum that cancels, rounding
errors grow, so such a problem is also run with inputs that are moved by one rounding error; differences up to ten times
this effect are not counted.

Tried: linear features up to 1e4, values up to 1e4, weights of masks from 1e-6 to 1e6, and exact zeros. Not tried:
anything beyond these, scores above about 100, NaN and infinity, half precision, dropout, CUDA, second derivatives, hubs
whose pairs are listed in parts.
"""

from __future__ import annotations

import argparse
import random
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.tensor_files import load_tensors

PATHS = ("auto", "factored", "pairwise", "blocks", "dense")
KERNELS = ("linear", "softmax", "additive")
TOLERANCE = {"float64": 1e-9, "float32": 1e-4}


class Problem:
    """One random problem; everything is drawn from a seed, in the same order in every version of the code."""

    def __init__(self, seed: int, number: int) -> None:
        self.choice = random.Random(f"{seed} {number}")
        self.generator = torch.Generator().manual_seed(self.choice.getrandbits(62))
        self.kernel = KERNELS[number % len(KERNELS)]
        self.kind = list(KINDS)[number // len(KERNELS) % len(KINDS)]
        self.dtype = self.pick(torch.float32, torch.float64)
        self.normalizer = self.pick("bound", "bound", "bound", "signed")
        self.heads, self.by_head = self.pick(1, 2, 3, 4), self.maybe(0.4)
        self.signed, self.weight_scale = self.maybe(0.5), self.pick(1, 1, 1, 1e-6, 1e6)
        self.parameters: dict[str, Tensor] = {}
        most = self.pick(*[12] * 14, *[40] * 5, 150, 400)
        most = min(most, 40) if self.kind in ("tensor", "dense", "entrywise") else most  # N² numbers are stored
        sizes = [
            self.choice.choice([1, 2, self.choice.randint(1, most), most]) for _ in range(self.choice.randint(1, 6))
        ]
        if self.kind in EQUAL or self.maybe(0.2):
            sizes = [self.choice.choice(EQUAL.get(self.kind, sizes))] * len(sizes)
        self.set_graphs(sizes)

    def set_graphs(self, sizes: list[int]) -> None:
        """Graphs of these sizes, with random edges in both directions; some nodes have none."""
        self.sizes, self.num_nodes = sizes, sum(sizes)
        self.batch = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        start = torch.tensor([0, *sizes]).cumsum(0)[:-1].index_select(0, self.batch)
        first = torch.arange(self.num_nodes).repeat_interleave(2)
        size = torch.tensor(sizes).index_select(0, self.batch)
        second = start[first] + (self.numbers(2 * self.num_nodes) * size[first]).long()
        kept = (first != second) & (self.numbers(2 * self.num_nodes) < 0.7)
        self.pairs = torch.stack([first[kept], second[kept]])
        self.edges = torch.cat([self.pairs, self.pairs.flip(0)], dim=1)
        parent = torch.where(torch.arange(self.num_nodes) == start, -1, start + 0)
        drawn = start + (self.numbers(self.num_nodes) * (torch.arange(self.num_nodes) - start)).long()
        self.parent = torch.where((parent < 0) | (self.numbers(self.num_nodes) < 0.1), -1, drawn)

    def pick(self, *options: Any) -> Any:
        return self.choice.choice(options)

    def maybe(self, probability: float) -> bool:
        return self.choice.random() < probability

    def numbers(self, *shape: int, signed: bool = False) -> Tensor:
        make = torch.randn if signed else torch.rand
        return make(shape, generator=self.generator, dtype=torch.float64)

    def parameter(self, name: str, *shape: int, signed: bool | None = None, scale: float | None = None) -> Tensor:
        """A learnable tensor; some of its numbers are exactly zero."""
        value = self.numbers(*shape, signed=self.signed if signed is None else signed)
        if self.maybe(0.3):
            value = value * (self.numbers(*shape) > 0.2)
        return self.keep(name, value * (self.weight_scale if scale is None else scale))

    def keep(self, name: str, value: Tensor) -> Tensor:
        name = f"{name}{len(self.parameters)}"
        self.parameters[name] = value.to(self.dtype).requires_grad_()
        return self.parameters[name]

    def per_head(self, name: str, *shape: int, last: bool = False, **settings: Any) -> Tensor:
        """As `parameter`, with an axis of heads in half of the problems."""
        if not self.by_head:
            return self.parameter(name, *shape, **settings)
        return self.parameter(name, *((*shape, self.heads) if last else (self.heads, *shape)), **settings)

    def time(self) -> Tensor:
        value = 0.1 + 1.5 * self.numbers(*([self.heads] if self.by_head else []))
        return self.keep("time", value)

    def module(self, mask: torch.nn.Module, graph: Data) -> Any:
        """The operator of a mask module, whose parameters count as the problem's."""
        mask = mask.to(self.dtype)
        for name, value in mask.named_parameters():
            if "modulation" in name:
                value.data.copy_(self.numbers(*value.shape, signed=self.signed))
            self.parameters[f"{name}{len(self.parameters)}"] = value
        return mask(graph)

    def inputs(self) -> dict[str, Tensor]:
        """The tensors of attention, by the names of its arguments."""
        heads, width, channels = self.heads, self.choice.randint(1, 40), self.choice.randint(1, 40)
        nodes = self.num_nodes
        v = self.numbers(nodes, heads, channels, signed=True) * self.pick(1, 1, 1, 1e4)
        if self.kernel == "additive":
            scale = self.pick(1, 1, 10)
            return {name: scale * self.numbers(nodes, heads, signed=True) for name in ("receiver", "sender")} | {"v": v}
        q, k = (self.numbers(nodes, heads, width, signed=True) for _ in range(2))
        if self.kernel == "linear":
            size, kind = self.pick(1, 1, 1, 1e-3, 1e4), self.pick("signed", "positive", "relu")
            q, k = ({"signed": x, "positive": x.abs() + 0.01, "relu": x.relu()}[kind] * size for x in (q, k))
            if self.maybe(0.2):
                q = q * (self.numbers(nodes, 1, 1) > 0.3)
        else:
            q, k = q * self.pick(1, 1, 3), k
        return {"q": q, "k": k, "v": v}

    def run(self) -> dict[str, Any]:
        try:
            runs = self.runs()
        except Exception as error:  # the mask could not be built
            runs = dict.fromkeys(PATHS, _error(error))
        words = ("kernel", "kind", "normalizer", "heads", "by_head", "signed", "sizes")
        return {**{x: getattr(self, x) for x in words}, "dtype": str(self.dtype)[6:], "runs": runs}

    def runs(self) -> dict[str, Any]:
        """Outputs, gradients and their sizes by path, or errors."""
        from pyg_topomask import ops

        mask = KINDS[self.kind](self)
        attend = getattr(ops, f"masked_{self.kernel}_attention")
        tensors = {name: x.to(self.dtype).requires_grad_() for name, x in self.inputs().items()}
        leaves, values = {**tensors, **self.parameters}, list(tensors.values())
        loss = self.numbers(*tensors["v"].shape, signed=True).to(self.dtype)
        batch = self.batch if mask is None or self.maybe(0.8) else None
        runs = {}
        moved = {
            name: torch.rand(x.shape, generator=self.generator, dtype=x.dtype) - 0.5 for name, x in tensors.items()
        }
        for path in (*PATHS, *(["moved"] if self.normalizer == "signed" else [])):
            args = values
            if path == "moved":
                eps = 2 * torch.finfo(self.dtype).eps
                args = [x + eps * x.detach() * moved[name] for name, x in tensors.items()]
            try:
                chosen = "auto" if path == "moved" else path
                out = attend(*args, mask, batch, path=chosen, normalizer=self.normalizer)
                used = [x for x in leaves.values() if x.requires_grad]
                grads = torch.autograd.grad((out * loss).sum(), used, allow_unused=True, retain_graph=True)
                found = {name: torch.zeros_like(x) if g is None else g for (name, x), g in zip(leaves.items(), grads)}
                size = float(loss.abs().sum(-1).max() * tensors["v"].abs().max())
                floors = {name: size / max(x.abs().max().item(), 1e-300) for name, x in leaves.items() if x.numel()}
                runs[path] = {"out": out.detach(), "grads": found, "floors": floors}
            except Exception as error:  # its type is compared
                runs[path] = _error(error)
        return runs


def _error(error: Exception) -> dict[str, str]:
    return {"error": type(error).__name__, "message": str(error)}


def _edge_weight(p: Problem) -> Tensor:
    weight = p.parameter("edge_weight", p.pairs.size(1), signed=False, scale=1.0)
    return torch.cat([weight, weight])


def _walked(p: Problem, diagonal: str, **settings: Any) -> Data:
    from pyg_topomask.transforms import AddRandomWalks

    graph = Data(edge_index=p.edges, num_nodes=p.num_nodes)
    return AddRandomWalks(3, 3, halt_prob=0.2, seed=p.choice.getrandbits(20), diagonal=diagonal, **settings)(graph)


def _grf(p: Problem) -> Any:
    from pyg_topomask.nn import GRFMask

    diagonal = p.pick("independent", "corrected", "shared")
    mask = GRFMask(p.heads if p.by_head else 1, 3, symmetric=p.maybe(0.8), diagonal=diagonal)
    return p.module(mask, _walked(p, diagonal))


def _rwgnk(p: Problem) -> Any:
    from pyg_topomask.nn import RWGNKMask

    mask = RWGNKMask(p.heads if p.by_head else 1, max_length=3, learnable=p.maybe(0.5))
    return p.module(mask, _walked(p, "shared"))


def _dense(p: Problem) -> Tensor:
    return p.per_head("matrix", p.num_nodes, p.num_nodes) * (p.batch[:, None] == p.batch)


def _toeplitz(p: Problem) -> Any:
    size = p.sizes[0]
    grid = (2, size // 2) if size % 2 == 0 and p.maybe(0.5) else (size,)
    return _operators().ToeplitzOperator(p.per_head("weight", *(2 * n - 1 for n in grid)), grid, len(p.sizes))


def _sparse(p: Problem) -> Any:
    kept = p.numbers(p.edges.size(1)) < 0.8  # not symmetric
    index = torch.cat([p.edges[:, kept], torch.arange(p.num_nodes).expand(2, -1)[:, : p.num_nodes // 2]], dim=1)
    return _operators().SparseOperator(index, p.per_head("value", index.size(1), last=True), p.num_nodes)


def _factors(p: Problem) -> Any:
    sides = []
    for name in ("left", "right"):
        index = torch.cat(
            [p.edges[:, p.numbers(p.edges.size(1)) < 0.6], torch.arange(p.num_nodes).expand(2, -1)], dim=1
        )
        sides.append((index, p.per_head(name, index.size(1), last=True)))
    if p.maybe(0.2):
        sides[p.pick(0, 1)] = None
    return _operators().SparseFactorOperator(*sides, p.num_nodes)


def _series(p: Problem) -> Any:
    weight = p.parameter("edge_weight", p.edges.size(1), scale=0.5) if p.maybe(0.5) else None
    edges = p.edges if p.maybe(0.5) or weight is not None else p.pairs
    return _operators().PowerSeriesOperator(edges, p.num_nodes, p.per_head("coeffs", 4), weight)


def _heat(p: Problem) -> Any:
    laplacian = p.pick("combinatorial", "random_walk", "adjacency")
    weight, tol = _edge_weight(p) if p.maybe(0.5) else None, p.pick(1e-6, 1e-12)
    return _operators().HeatOperator(p.edges, p.num_nodes, p.time(), weight, laplacian, tol)


def _forest(p: Problem) -> Any:
    length = p.parameter("length", p.num_nodes, signed=False, scale=1.0)
    rate = p.keep("a", p.numbers(*([p.heads] if p.by_head else []), signed=True) * 0.5)
    return _operators().ForestExpOperator(p.parent, length, rate, p.keep("b", p.numbers(signed=True)))


def _tree(p: Problem) -> Any:
    method = p.pick("auto", "histogram", "centroid")
    return _operators().TreeDistanceOperator(p.parent, p.per_head("values", p.choice.randint(1, 8)), method)


def _low_rank(p: Problem) -> Any:
    rank = p.choice.randint(1, 4)
    sides = [p.per_head(name, p.num_nodes, rank) for name in ("left", "right")]
    return _operators().LowRankOperator(*sides, p.batch)


def _grid_heat(p: Problem) -> Any:
    size = p.sizes[0]
    grid = (2, size // 2) if size % 2 == 0 and p.maybe(0.5) else (size,)
    return _operators().GridHeatOperator(grid, p.time(), len(p.sizes))


def _part(p: Problem, *names: str) -> Any:
    """A mask without heads, of one of these kinds."""
    before, p.by_head = p.by_head, False
    part = KINDS[p.pick(*names)](p)
    p.by_head = before
    return part


GENERAL = ("sparse", "low_rank", "heat", "power_series", "forest", "tree_distance", "grf", "causal")
EXACT = ("sparse", "low_rank", "power_series", "sparse_factor")


def _kronecker(p: Problem) -> Any:
    rows, cols = p.choice.randint(1, 6), p.choice.randint(1, 8)
    p.set_graphs([rows])
    left = KINDS[p.pick("toeplitz", "sparse", "heat")](p)
    p.set_graphs([cols])
    right = _part(p, "grid_heat", "sparse", "low_rank")
    p.set_graphs([rows * cols])
    return _operators().KroneckerOperator(left, right)


def _block_diagonal(p: Problem) -> Any:
    sizes, parts = p.sizes, []
    for size in sizes:
        p.set_graphs([size])
        parts.append(_part(p, "toeplitz", "sparse", "grid_heat", "low_rank"))
    p.set_graphs(sizes)
    return _operators().BlockDiagonalOperator(parts)


def _bordered(p: Problem) -> Any:
    inner, batch, graphs = KINDS[p.pick("sparse", "power_series", "grf", "heat")](p), p.batch, len(p.sizes)
    p.set_graphs([size + 1 for size in p.sizes])
    return _operators().BorderedOperator(inner, batch, graphs)


def _diagonal(p: Problem) -> Any:
    sides = [
        p.per_head(name, p.num_nodes, last=True, scale=1.0) if p.maybe(0.8) else None for name in ("left", "right")
    ]
    sides[0] = p.per_head("left", p.num_nodes, last=True, scale=1.0) if sides == [None, None] else sides[0]
    return _operators().DiagonalScaledOperator(_part(p, *GENERAL), *sides, p.batch)


def _entrywise(p: Problem) -> Any:
    names = p.pick(("sparse", "sparse_factor"), ("low_rank", "low_rank"), ("dense", "dense"))
    return _operators().entrywise_product(*(_part(p, name) for name in names))


def _constant(p: Problem) -> Any:
    part = _part(p, *GENERAL)
    for value in p.parameters.values():
        value.requires_grad_(False)
    p.parameters.clear()
    return _operators().ConstantOperator(part)


def _operators() -> Any:
    from pyg_topomask import operators

    return operators


KINDS: dict[str, Callable[[Problem], Any]] = {
    "none": lambda p: None,
    "tensor": _dense,
    "dense": lambda p: _operators().DenseOperator(_dense(p)),
    "ones": lambda p: _operators().OnesOperator(p.batch),
    "padding": lambda p: _operators().PaddingOperator(p.numbers(p.num_nodes) < 0.7, p.batch),
    "causal": lambda p: _operators().CausalOperator(p.batch),
    "toeplitz": _toeplitz,
    "forest": _forest,
    "tree_distance": _tree,
    "heat": _heat,
    "hypercube_heat": lambda p: _operators().HypercubeHeatOperator(p.sizes[0].bit_length() - 1, p.time(), len(p.sizes)),
    "grid_heat": _grid_heat,
    "power_series": _series,
    "low_rank": _low_rank,
    "sparse_factor": _factors,
    "sparse": _sparse,
    "grf": _grf,
    "rwgnk": _rwgnk,
    "bordered": _bordered,
    "sum": lambda p: _part(p, *GENERAL) + KINDS[p.pick(*EXACT)](p),
    "scaled": lambda p: p.pick(-0.5, p.parameter("scale", scale=1.0)) * KINDS[p.pick(*GENERAL)](p),
    "transposed": lambda p: KINDS[p.pick(*GENERAL, "sparse_factor")](p).T,
    "stack": lambda p: _operators().HeadStackOperator([_part(p, *GENERAL) for _ in range(p.heads)]),
    "kronecker": _kronecker,
    "block_diagonal": _block_diagonal,
    "product": lambda p: _operators().ProductOperator(_part(p, *EXACT), KINDS[p.pick(*EXACT)](p)),
    "diagonal": _diagonal,
    "entrywise": _entrywise,
    "constant": _constant,
}
EQUAL = {
    "toeplitz": (1, 2, 6, 12, 40),
    "grid_heat": (1, 2, 6, 12, 40),
    "hypercube_heat": (1, 2, 8, 16, 64),
}


def _difference(a: dict[str, Any], b: dict[str, Any]) -> tuple[float, str]:
    """Largest relative difference of two runs, and where it is."""
    worst = (_relative(a["out"], b["out"], 0.0), "out")
    for name, grad in a["grads"].items():
        floor = a["floors"].get(name, 0.0)
        worst = max(worst, (_relative(grad, b["grads"][name], floor), f"gradient of {name}"))
    return worst


def _relative(a: Tensor, b: Tensor, floor: float) -> float:
    if a.shape != b.shape or a.dtype != b.dtype or not torch.equal(a.isfinite(), b.isfinite()):
        return float("inf")
    a, b = (x[a.isfinite()].double() for x in (a, b))
    size = max(floor, *(float(x.abs().max()) for x in (a, b))) if a.numel() else 0.0
    return float((a - b).abs().max()) / size if size else 0.0


def compare(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> int:
    """Print the differences of two lists of results; the number of those above the tolerance."""
    worst: dict[tuple[str, ...], tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    lines, served, same, total = [], [], 0, 0
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        noise = 0.0
        if "moved" in old["runs"] and "out" in old["runs"]["auto"]:
            noise = 10 * _difference(old["runs"]["auto"], old["runs"]["moved"])[0]
        for path in PATHS:
            a, b, total = old["runs"][path], new["runs"][path], total + 1
            key = (old["kernel"], old["kind"], path, old["dtype"])
            title = f"{number} {' '.join(key)}, {old['normalizer']}, heads {old['heads']}, sizes {old['sizes']}"
            if "error" in a or "error" in b:
                if "error" in a and "error" not in b:
                    served.append(title)
                elif a.get("error") != b.get("error"):
                    lines.append(f"{title}: {a.get('error', 'served')} became {b['error']}: {b['message'][:200]}")
                same += a.get("error") == b.get("error")
                continue
            known = [a] if path != "auto" else [x for x in old["runs"].values() if "out" in x]
            found, where = min(_difference(x, b) for x in known)
            same += found == 0
            worst[key] = (max(worst[key][0], found), worst[key][1] + 1)
            if not found <= max(TOLERANCE[old["dtype"]], noise):
                lines.append(f"{title}: {where} differs by {found:.1e}")
    for key, (value, count) in sorted(worst.items()):
        print(f"{key[0]:9}{key[1]:15}{key[2]:9}{key[3]:8} {count:3} runs  {value:.1e}")
    for title in served:
        print(f"now served: {title}")
    for line in lines:
        print(f"DIFFERS {line}")
    print(f"{len(before)} problems, {total} runs, {same} equal bit by bit, {len(lines)} differ")
    return len(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", help="file for the results of the code that is imported")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--compare", nargs=2, metavar=("BEFORE", "AFTER"), help="two such files")
    args = parser.parse_args()
    if args.compare:
        raise SystemExit(bool(compare(*(load_tensors(Path(file)) for file in args.compare))))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.save([Problem(args.seed, number).run() for number in range(args.count)], args.out)


if __name__ == "__main__":
    main()
