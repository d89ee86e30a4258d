"""The checks of an attention, and of the weights of pairs that it returns."""

import pytest
import torch
from torch_geometric.utils import to_dense_batch

from pyg_topomask.nn import PrimalAttention, PrimphormerAttention
from pyg_topomask.testing import AttentionCase


class WeightsCase(AttentionCase):
    def test_weights_of_pairs_are_those_that_multiply_the_values(self):
        self.channels, seen = 16, []  # more channels of a head than nodes of a graph, so that the values tell all apart
        attn, batch, x = self._case()
        out, size = attn(x, batch.batch, batch), batch.num_nodes
        if isinstance(attn, PrimalAttention | PrimphormerAttention):
            with pytest.raises(NotImplementedError, match=f"{type(attn).__name__} forms no weights of pairs"):
                attn(x, batch.batch, batch, return_attention_weights=True)
            return
        attn.qkv.register_forward_hook(lambda module, inputs, result: seen.append(result))
        (attn.out or attn).register_forward_hook(lambda module, inputs, result: seen.append((inputs[0], result)))
        again, (pairs, weights) = attn(x, batch.batch, batch, return_attention_weights=True)
        assert torch.equal(again, out)
        width = getattr(attn, "val_dim", self.channels // attn.heads)
        values = seen[0][:, -attn.heads * width :].unflatten(1, (attn.heads, -1))
        terms = weights[..., None] * values[pairs[1]]
        sums = torch.zeros_like(values).index_add(0, pairs[0], terms).flatten(1)
        torch.testing.assert_close(sums, seen[1][attn.out is None], **self.tol)
        if bool((weights >= 0).all()):  # and so the mask is its own bound
            total = torch.zeros(len(values), attn.heads, dtype=x.dtype).index_add(0, pairs[0], weights)
            torch.testing.assert_close(total, (total > 0.5).to(total), **self.tol)
        assert torch.equal(pairs, pairs.unique(dim=1))
        same = attn(*to_dense_batch(x, batch.batch), batch, return_attention_weights=True)[1]  # numbers without padding
        torch.testing.assert_close(same, (pairs, weights), **self.tol)
        chosen = torch.isin(pairs[0], torch.tensor([1, size - 1]))
        rows = attn(x, batch.batch, batch, return_attention_weights=True, rows=[size - 1, 1])[1]
        torch.testing.assert_close(rows, (pairs[:, chosen], weights[chosen]), **self.tol)
        with pytest.raises(ValueError, match=f"'rows' must be numbers of nodes.*got \\[{size}"):
            attn(x, batch.batch, batch, return_attention_weights=True, rows=[size])
