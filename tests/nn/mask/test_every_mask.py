"""Every mask with each of its examples, in attention on every path; one with every kernel."""

from functools import partial
from inspect import signature

import networkx as nx
import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.utils import from_networkx

from pyg_topomask.nn import MASK, MaskedAttention
from pyg_topomask.nn.attention.masked import KERNELS
from pyg_topomask.testing import GRAPHS, AttentionCase, examples, prepared
from tests.nn.attention.projected_case import ProjectedCase
from tests.threads import NoRacingSums

# A mask may be so general that softmax attention forms it as a dense array, and warns.
pytestmark = pytest.mark.filterwarnings("ignore:attention forms this mask as a dense array")

CHANNELS = 8
MASKS = examples(MASK)
GRIDS = ("path", "single")  # the paths among the tiny graphs, numbered from one end to the other
CASES = [*((name, kernel) for name in MASKS for kernel in ("relu", "softmax"))]
CASES += [("tree max_hops=8", kernel) for kernel in KERNELS if kernel not in ("relu", "softmax")]


def moved(module):
    """Give a mask signed parameters off their start."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return module


def graphs_for(card):
    return GRIDS if card.graphs == "grids" else AttentionCase.names


class TestEveryMask(ProjectedCase):
    gradcheck_channels = 2  # enough for two heads

    @pytest.fixture(autouse=True, params=CASES, ids=lambda case: f"{case[0]}, {case[1]}")
    def _chosen(self, request):
        name, self.kernel = request.param
        self.mask, card = MASKS[name], MASKS[name].func.card
        takes_heads = "heads" in signature(self.mask.func).parameters
        if self.kernel == "softmax" and takes_heads and not name.startswith("rwgnk"):  # its gradient is near to noise
            self.mask = partial(self.mask, heads=2)
        self.names, self.equivariant = graphs_for(card), card.reach != "order"
        if name.startswith("heat"):  # a plan has the series for the longest time, of another error
            self.plan_tol = {"rtol": 1e-3, "atol": 1e-4}

    def build(self):
        return MaskedAttention(self.channels, 2, self.kernel, moved(self.mask()), num_features=12)

    def test_repeats_on_two_threads(self):
        with NoRacingSums():
            super().test_repeats_on_two_threads()


@pytest.mark.parametrize("name", MASKS)
def test_reset_and_text(name):
    mask, fresh = moved(MASKS[name]()), MASKS[name]()
    batch = Batch.from_data_list(prepared(mask, [GRAPHS[graph] for graph in graphs_for(mask.card)]))
    before = mask(batch).to_dense()
    assert before.shape[-2:] == (batch.num_nodes, batch.num_nodes)
    learns = any(True for _ in mask.parameters())
    assert learns == (mask.card.learns != "none") or name == "rwgnk"
    if learns:
        mask.reset_parameters()
        assert not torch.equal(before, fresh(batch).to_dense())
    assert torch.equal(mask(batch).to_dense(), fresh(batch).to_dense())
    assert repr(mask).startswith(f"{type(mask).__name__}(")
    known = {key for key in MASKS[name].keywords if isinstance(getattr(mask, key, None), (int, str))}
    assert all(f"{key}={MASKS[name].keywords[key]!r}" in repr(mask) for key in known)


@pytest.mark.parametrize("name", MASK)
def test_every_mask_has_a_card_and_examples_that_no_caller_changes(name):
    assert "card" in vars(MASK[name])
    MASK[name].examples()[0]["other"] = 1
    assert "other" not in MASK[name].examples()[0]


@pytest.mark.parametrize("name", MASK)
def test_configs_give_every_mask_the_heads_of_the_attention(name):
    takes_heads = "heads" in signature(MASK[name]).parameters
    assert MASK[name].config_keys.get("heads") == ("gt.n_heads" if takes_heads else None)


def paths(op, kernel):
    return [
        "auto",
        "dense",
        *(["factored"] if kernel != "softmax" else []),
        *(["pairwise"] if op.support is not None else []),
        *(["blocks"] if op.dense_blocks is not None else []),
    ]


@pytest.mark.parametrize("kernel", ["elu1", "softmax"])
@pytest.mark.parametrize("name", MASKS)
def test_every_path_gives_the_same(name, kernel):
    mask = moved(MASKS[name]()).double()
    graph = Batch.from_data_list(prepared(mask, [GRAPHS[one] for one in graphs_for(mask.card)], num_walks=4))
    attn, x = MaskedAttention(8, 2, kernel, mask).double(), torch.randn(graph.num_nodes, 8, dtype=torch.float64)
    op, found = mask(graph), {}
    tol = 1e-4 if torch.as_tensor(op.error).any() else 1e-9
    for attn.path in ("dense", *paths(op, kernel)):
        out = attn(x.requires_grad_(), graph=graph)
        found[attn.path] = [out, *torch.autograd.grad(out.square().sum(), [x, *attn.parameters()])]
        torch.testing.assert_close(found[attn.path], found["dense"], rtol=tol, atol=tol, msg=attn.path)


KINDS = [nx.cycle_graph(9), nx.star_graph(5), nx.random_regular_graph(3, 12, seed=0), nx.path_graph(17)]


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1), (torch.float32, 1e4), (torch.float64, 1)])
@pytest.mark.parametrize("kernel", ["elu1", "softmax"])
@pytest.mark.parametrize("name", {name.split()[0]: name for name in reversed(MASKS)}.values())
def test_gradient_of_equal_features_is_that_of_central_differences(name, kernel, dtype, size):
    """All nodes have equal features, so that outputs are the largest value."""
    mask = examples(MASK, (9,))[name]()
    kinds = map(from_networkx, [nx.path_graph(9)] * 3 if mask.card.graphs == "grids" else KINDS)
    plain = [Data(edge_index=one.edge_index, num_nodes=one.num_nodes) for one in kinds]
    graph = Batch.from_data_list(prepared(mask, plain, num_walks=8))
    attn = MaskedAttention(CHANNELS, 2, kernel=kernel, mask=mask).to(dtype)
    x, values = torch.full((graph.num_nodes, CHANNELS), size, dtype=dtype), attn.qkv.weight[2 * CHANNELS :]
    direction = torch.randn(values.shape, dtype=dtype)
    for path in paths(mask(graph), kernel):
        attn.path = path
        attn.zero_grad()
        attn(x, graph=graph).sum().backward()
        slope = (attn.qkv.weight.grad[2 * CHANNELS :] * direction).sum()
        torch.testing.assert_close(slope, difference(attn, x, graph, direction), rtol=2e-3, atol=1e-3 * size, msg=path)


@torch.no_grad()
def difference(attn, x, graph, direction):
    """Change of the summed output along a direction of the values' projection; the output is linear in it."""
    values = attn.qkv.weight[2 * CHANNELS :]
    outputs = []
    for step in (0.5, -1.0):
        values += step * direction
        outputs.append(attn(x, graph=graph).sum())
    values += 0.5 * direction
    return outputs[0] - outputs[1]
