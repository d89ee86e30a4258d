"""Random calls of transforms, masks and attentions: a right answer, or an error that says what to do."""

import random
from collections.abc import Callable
from functools import partial
from inspect import isclass, signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import BaseTransform

from pyg_topomask import testing, transforms
from pyg_topomask.nn import ATTENTION, MASK, GKATAttention, GPSLayer, MaskedAttention
from pyg_topomask.nn.attention.masked import KERNELS

CHANNELS = 8

DOCUMENTED = (ValueError, TypeError)
"""Errors that public entries document."""

SETTINGS = {"steps": range(1, 5), "times": [0.5, 2], "seed": 0, "num_walks": 4, "degree": 2, "num_virtual": 1}

TRANSFORMS: dict[str, Callable[[], BaseTransform]] = {
    name: partial(cls, **{key: SETTINGS[key] for key in signature(cls).parameters if key in SETTINGS})
    for name, cls in vars(transforms).items()
    if isclass(cls) and issubclass(cls, BaseTransform)
}


class WrongAnswerError(Exception):
    """An entry gave a wrong answer, or an error that does not help."""


def random_graph(draw: random.Random, weighted: bool | None = None) -> Data:
    """A graph with any mixture of loops, repeated edges, isolated nodes, hubs and one-way edges, or without nodes."""
    size = draw.choice([0, 1, 2, 3, 5, 8, 13, 40])
    number = draw.choice([0, 1, size, 3 * size]) if size else 0
    low = draw.choice([0, max(0, size - 2)])  # from a hub or two
    edges = [(draw.randrange(low, size), draw.randrange(size)) for _ in range(number)]
    if draw.random() < 0.3:
        edges = [(i, i + 1) for i in range(size - 1)]
    if draw.random() < 0.7:
        edges += [(j, i) for i, j in edges]
    seed = torch.Generator().manual_seed(draw.getrandbits(30))
    data = Data(
        x=torch.randn(size, CHANNELS, generator=seed),
        edge_index=torch.tensor(edges, dtype=torch.long).view(-1, 2).t().contiguous(),
        num_nodes=size,
    )
    if weighted or (weighted is None and draw.random() < 0.3):
        data.edge_weight = torch.rand(len(edges), generator=seed) * draw.choice([1, 1e-20, 1e20])
    return data


def damage(data: Data, draw: random.Random) -> Data:
    """The graph with one wrong part."""
    data, edges, size, count = data.clone(), data.edge_index, data.num_nodes, data.num_edges
    wrong: list[tuple[str, Any]] = [
        ("edge_index", edges.float() + 0.5),
        ("edge_index", torch.cat([edges, torch.tensor([[0], [size + 3]])], dim=1)),
        ("edge_index", torch.cat([edges, torch.tensor([[-1], [0]])], dim=1)),
        ("edge_index", torch.zeros(3, 2, dtype=torch.long)),
        ("edge_weight", torch.ones(count + 1)),
        ("edge_weight", torch.full((count,), draw.choice([float("nan"), float("inf"), -1.0]))),
        ("edge_index", None),
        ("x", draw.choice([None, data.x.long(), data.x[:, :3], data.x[None], data.x[1:]])),
        ("edge_index", edges.tolist()),
    ]
    name, value = draw.choice(wrong)
    data[name] = value
    return data


def answered(trial: Callable[..., None]) -> Callable[[random.Random], str]:
    """A check of a random attention, from a trial that raises a documented error, or `WrongAnswerError`.

    The trial is given the draw, the attention's name with its settings, the attention and the transform that prepares
    graphs for it.
    """

    def check(draw: random.Random) -> str:
        name, attn, transform = random_attention(draw)
        try:
            trial(draw, name, attn, transform)
        except DOCUMENTED as error:
            return _refused(error, name)
        return "answered"

    return check


def call_transform(draw: random.Random) -> str:
    """Apply a random transform to a random graph, whole or damaged. Returns "answered" or "refused"."""
    name, data = draw.choice(list(TRANSFORMS)), random_graph(draw)
    whole = draw.random() < 0.5
    if not whole:
        data = damage(data, draw)
    before = data.clone()
    try:
        out = TRANSFORMS[name]()(data)
    except DOCUMENTED as error:
        return _refused(error, f"{name} of {before}")
    if not _same(data, before):
        raise WrongAnswerError(f"{name} changed its input {before}")
    for key, value in out.to_dict().items():  # NaN marks missing eigenvectors of small graphs
        if key not in before and isinstance(value, Tensor) and value.isinf().any():
            raise WrongAnswerError(f"{name}: {key} is not finite on {before}")
    return "answered"


@answered
def call_attention(draw: random.Random, name: str, attn: Module, transform: BaseTransform) -> None:
    """Run an attention on a batch of random graphs, together and alone."""
    weighted = draw.random() < 0.3
    graphs = [transform(random_graph(draw, weighted)) for _ in range(draw.choice([1, 2, 4]))]
    batch = Batch.from_data_list(graphs)
    x = batch.x * draw.choice([0, 1, 1e-10, 1e4])
    out = _run(attn, x, batch)
    if out.shape != x.shape or not out.isfinite().all():
        raise WrongAnswerError(f"{name}: output {tuple(out.shape)} of {batch} is wrong or not finite")
    inputs = [parameter for parameter in attn.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(out.square().sum(), inputs, allow_unused=True)
    if not all(grad.isfinite().all() for grad in found if grad is not None):
        raise WrongAnswerError(f"{name}: a gradient on {batch} is not finite")
    one = draw.randrange(len(graphs))
    part = batch.batch == one
    alone = _run(attn, x[part], Batch.from_data_list([graphs[one]]))
    scale = float(out.detach().abs().max()) if out.numel() else 0.0
    if not torch.allclose(alone, out[part], rtol=1e-3, atol=1e-4 * scale + 1e-6):
        raise WrongAnswerError(f"{name}: graph {one} of {batch} depends on its batch mates")


@answered
def call_attention_wrongly(draw: random.Random, name: str, attn: Module, transform: BaseTransform) -> None:
    """Run an attention with one wrong argument: a documented error, or an output of the right shape."""
    data = transform(random_graph(draw))
    size, x = data.num_nodes, data.x
    batch = torch.zeros(size, dtype=torch.long)
    wrong = [
        *((given, batch, data) for given in (x.long(), x[:, :3], x[None])),
        *((x, numbers, data) for numbers in (torch.ones(size + 1).long(), batch - 1, torch.arange(size).flip(0))),
        (x, batch, Data(num_nodes=size)),
    ]
    kind = draw.randrange(len(wrong))
    out = attn(*wrong[kind])
    out = out[0] if isinstance(out, tuple) else out
    if out.shape[-1] != CHANNELS:
        raise WrongAnswerError(f"{name}: wrong argument {kind} gave shape {tuple(out.shape)}")


@answered
def call_in_low_precision(draw: random.Random, name: str, attn: Module, transform: BaseTransform) -> None:
    """Run an attention under autocast, in float64, and with logits of any size: finite, and near float32."""
    batch = Batch.from_data_list([transform(random_graph(draw, False)) for _ in range(2)])
    wanted = _run(attn, batch.x, batch)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            found = _run(attn, batch.x, batch)
        # Rounding can take a relu's only positive entry from a query: few of many rows, but all of one.
        share = 0.8 if batch.num_nodes > 3 or "relu" not in name else 0.0
        _check_near(found.float(), wanted, 0.15, f"{name} on {batch} under autocast of {dtype}", share)
    if not _run(attn, 1e4 * batch.x, batch).isfinite().all():
        raise WrongAnswerError(f"{name} on {batch}: logits of 1e4 and more overflow")
    exact = _run(attn.double(), batch.x.double(), batch)
    _check_near(wanted, exact.float(), 1e-3, f"{name} on {batch} in float32")


@answered
def train_for_long(draw: random.Random, name: str, attn: Module, transform: BaseTransform) -> None:
    """Train a layer with a random attention on one batch: finite in every step."""
    batch = Batch.from_data_list([transform(random_graph(draw, False)) for _ in range(3)])
    model = GPSLayer(CHANNELS, attn=attn.train())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    target = torch.randn(batch.x.shape)
    for step in range(1000 if batch.num_nodes > 1 else 0):  # batch norm needs two nodes
        optimizer.zero_grad()
        loss = (_run(model, batch.x, batch, batch.edge_index) - target).square().mean()
        loss.backward()
        optimizer.step()
        if not all(parameter.isfinite().all() for parameter in [loss, *model.parameters()]):
            raise WrongAnswerError(f"{name} on {batch}: not finite in step {step}")


def _run(module: Module, x: Tensor, batch: Batch, *edges: Tensor) -> Tensor:
    out = module(x, *edges, batch.batch, batch)
    return out[0] if isinstance(out, tuple) else out


def _check_near(found: Tensor, wanted: Tensor, rtol: float, what: str, share: float = 1.0) -> None:
    """Compare a share of the entries, relative to the largest entry, since sums of a row may cancel."""
    if not wanted.numel():
        return
    error = float((found - wanted).abs().flatten().quantile(share))
    if not error <= rtol * float(wanted.abs().max()) + 1e-6:  # not with NaN either
        raise WrongAnswerError(f"{what}: the error is {error:.2g}")


def random_attention(draw: random.Random) -> tuple[str, Module, BaseTransform]:
    """Its name with the settings, the module in evaluation mode, and the transform that prepares graphs for it."""
    torch.manual_seed(draw.getrandbits(30))
    attentions, masks = testing.examples(ATTENTION), testing.examples(MASK, [draw.choice([3, 40])])
    name = draw.choice([*attentions, *masks])
    settings: dict[str, Any] = {"heads": draw.choice([1, 2, 4]), "kernel": draw.choice(KERNELS)}
    if name in masks:
        build = partial(MaskedAttention, num_features=8, mask=masks[name]())
    else:
        build = attentions[name]
        taken = signature(build.func).parameters.keys() - build.keywords.keys()
        settings = {key: value for key, value in settings.items() if key in taken and build.func is not GKATAttention}
    attn = build(CHANNELS, **settings)
    return f"{name} {settings}", attn.eval(), transforms.that_add(attn.requires, **SETTINGS | attn.transform_settings)


def _refused(error: Exception, what: str) -> str:
    if len(str(error)) < 15:
        raise WrongAnswerError(f"{what}: {type(error).__name__} {str(error)!r} does not help") from error
    return "refused"


def _same(data: Data, before: Data) -> bool:
    old, new = before.to_dict(), data.to_dict()
    equal = (torch.equal(a, b) or a.isnan().any() for a, b in ((old[k], new[k]) for k in old) if isinstance(a, Tensor))
    return old.keys() == new.keys() and all(equal)
