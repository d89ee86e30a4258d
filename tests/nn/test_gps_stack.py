import torch

from pyg_topomask.nn import (
    GPSStack,
    GRFAttention,
    MaskedAttention,
    PrimphormerAttention,
)
from tests.nn.gps_cases import Carrying, batch_of


def test_carries_of_several_attentions_are_kept_apart():
    torch.manual_seed(0)
    graph = batch_of()
    sizes = {"norm": None, "feed_forward": False}
    x = torch.randn(graph.num_nodes, 8)
    both = GPSStack(8, 3, attn=lambda n: [Carrying(), MaskedAttention(8)], **sizes)
    seen = []
    for layer in both:
        layer.attentions[0].register_forward_hook(
            lambda m, args, kwargs, out: seen.append(kwargs["carry"]), with_kwargs=True
        )
    both(x, graph.edge_index, graph.batch, graph, graph.num_graphs).sum().backward()
    assert [tuple(carry.shape) for carry in seen] == [(3, 8)] * 3
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


def test_carries_and_ties_pass_over_layers_of_another_kind():
    torch.manual_seed(0)
    graph = batch_of()
    x = torch.randn(graph.num_nodes, 8)
    kinds = [MaskedAttention, PrimphormerAttention, GRFAttention, PrimphormerAttention]
    stack = GPSStack(8, 4, attn=lambda n: kinds[n](8), norm=None, feed_forward=False)
    assert stack[3].attn.projection is stack[1].attn.projection
    seen = []
    for layer in (stack[1], stack[3]):
        layer.attn.register_forward_hook(
            lambda m, args, kwargs, out: seen.append((kwargs["carry"], out[1])), with_kwargs=True
        )
    stack(x, graph.edge_index, graph.batch, graph, graph.num_graphs).sum().backward()
    torch.testing.assert_close(seen[1][0], seen[0][1])
    assert seen[0][0].count_nonzero() == 0
    assert seen[1][0].count_nonzero() > 0
