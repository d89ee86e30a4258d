import pytest
import torch
from torch.nn import BatchNorm1d
from torch_geometric.nn import InstanceNorm

from pyg_topomask import nn
from tests.nn.gps_cases import Carrying, Conv, batch_of

BARE = {"norm": None, "feed_forward": False}


def results(stack, batch):
    """What a training step computes: nodes, gradients, and statistics of norms."""
    torch.manual_seed(1)
    x, edge_attr = torch.randn(batch.num_nodes, 8), torch.randn(batch.num_edges, 8)
    out = stack(x, batch.edge_index, batch.batch, batch, batch.num_graphs, edge_attr=edge_attr)
    ((out * torch.randn_like(out)).sum() + 0.1 * nn.auxiliary_loss(stack)).backward()
    return {"out": out, **{name: p.grad for name, p in stack.named_parameters()}, **dict(stack.named_buffers())}


class NormedAttention(nn.MaskedAttention):
    """Has running statistics of its own."""

    def __init__(self, channels, heads):
        super().__init__(channels, heads)
        self.norm = InstanceNorm(channels, track_running_stats=True)

    def forward(self, x, batch=None, graph=None):
        return super().forward(self.norm(x, batch), batch, graph)


@pytest.mark.parametrize("attention", [*nn.ATTENTION.values(), NormedAttention])
def test_checkpointing_changes_nothing_and_every_parameter_learns(attention):
    """As distributed training asks, every parameter has a gradient: also those that layers share or carry on."""
    batch, found, sizes = batch_of("path", "star", "two_parts"), [], []
    for checkpoint in (False, True):
        torch.manual_seed(0)
        conv, kept = lambda n: nn.GatedGCN(8, 0.3, update_edges=n < 2), []
        stack = nn.GPSStack(8, 3, conv, lambda _: attention(8, heads=2), checkpoint, dropout=0.3)
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.append(t.numel()) or t, lambda t: t):
            found.append(results(stack, batch))
        sizes.append(sum(kept))
        assert all(norm.momentum == 0.1 for norm in stack.modules() if isinstance(norm, BatchNorm1d))
    assert [name for name, value in found[0].items() if value is None] == []
    torch.testing.assert_close(found[1], found[0])
    assert sizes[1] < sizes[0]


def seen_by(stack, batch, key):
    """What the first branch of every layer was handed under a name."""
    seen = []
    for layer in stack:
        part = layer.conv if key == "edge_attr" else layer.attentions[0]
        part.register_forward_pre_hook(lambda _, args, given: seen.append(given.get(key)), with_kwargs=True)
    edge_attr = torch.randn(batch.num_edges, 8)
    given = {"edge_attr": edge_attr} if stack.takes("edge_attr") else {}
    stack(torch.randn(batch.num_nodes, 8), batch.edge_index, batch.batch, batch, **given)
    return seen, edge_attr


def test_updated_edges_reach_the_next_layer():
    seen, edge_attr = seen_by(nn.GPSStack(8, 3, conv=lambda _: Conv(edges=True)), batch_of(), "edge_attr")
    torch.testing.assert_close(seen, [edge_attr, 2 * edge_attr, 4 * edge_attr])


def test_carries_of_several_attentions_are_kept_apart():
    seen, _ = seen_by(
        nn.GPSStack(8, 3, attn=lambda n: [Carrying(), nn.MaskedAttention(8)], **BARE), batch_of(), "carry"
    )
    assert not seen[0].any()
    assert not torch.equal(seen[1], seen[2])


def test_carries_and_ties_pass_over_layers_of_another_kind():
    kinds = [nn.MaskedAttention, nn.PrimphormerAttention, nn.GRFAttention, nn.PrimphormerAttention]
    stack, handed = nn.GPSStack(8, 4, attn=lambda n: kinds[n](8), **BARE), []
    assert stack[3].attn.projection is stack[1].attn.projection
    stack[1].attn.register_forward_hook(lambda _, args, out: handed.append(out[1]))
    seen, _ = seen_by(stack, batch_of(), "carry")
    assert [carry is None for carry in seen] == [True, False, True, False]
    assert not seen[1].any()
    assert torch.equal(seen[3], handed[0])
    assert seen[3].any()


def test_a_stack_with_a_carry_is_the_formula():
    batch, x = batch_of(), torch.randn(13, 8, requires_grad=True)
    sums = torch.stack([x[batch.batch == graph].sum(0) for graph in range(3)])
    stack = nn.GPSStack(8, 2, attn=lambda _: Carrying(), **BARE)
    first = 2 * x + sums[batch.batch]
    second_sums = sums + torch.stack([first[batch.batch == graph].sum(0) for graph in range(3)])
    wanted = 2 * first + second_sums[batch.batch]
    torch.testing.assert_close(stack(x, batch.edge_index, batch.batch, batch), wanted)
    torch.testing.assert_close(stack(x, batch.edge_index, batch.batch), wanted)
    torch.testing.assert_close(nn.auxiliary_loss(stack), sums.square().sum() + second_sums.square().sum())
    assert nn.auxiliary_loss(torch.nn.ReLU()).item() == 0
    assert stack(x[:4], batch.edge_index[:, :0]).shape == (4, 8)  # one graph, no batch vector, no graph


def test_requires_is_the_union_of_the_layers():
    stack = nn.GPSStack(8, 2, lambda _: Conv(), lambda n: nn.GRFAttention(8) if n else nn.MaskedAttention(8))
    assert (
        stack.requires
        == nn.GPSModel(4, 8, 2, 2, attn=lambda _: nn.GRFAttention(8)).requires
        == nn.GRFAttention(8).requires
    )
    assert nn.GPSStack(8, 1, lambda _: Conv()).requires == ()


def test_layers_of_a_stack_share_what_stands_for_absent_edges():
    stack = nn.GPSStack(8, 3, attn=lambda _: nn.SANAttention(8, 2, edge_dim=3), norm=None)
    assert len({id(layer.attn.absent_vector) for layer in stack}) == 1
    names = [name for name, _ in stack.named_parameters() if name.endswith("absent_vector")]
    assert names == ["0.attn.absent_vector"]
    apart = nn.GPSStack(8, 3, attn=lambda _: nn.SANAttention(8, 2))
    assert len({id(layer.attn.absent_vector) for layer in apart}) == 3


@pytest.mark.parametrize("seeds", [{}, {"seed": 7}])
def test_layers_whose_attention_is_given_by_name_have_draws_of_their_own(seeds):
    layers = nn.GPSStack(8, 2, attn="performer", heads=2, attn_kwargs={"num_features": 16, **seeds})
    first, second = (layer.attentions[0].feature_map.projection for layer in layers)
    assert torch.equal(first, second) == ("seed" in seeds)


def test_heads_are_for_the_layers_that_have_an_attention():
    layers = nn.GPSStack(8, 2, "gcn", lambda layer: "kmip" if layer else None, heads=2)
    assert layers[0].attn is None
    assert layers[1].attn.heads == 2
