"""The case of attentions with the projections `qkv` and `out`."""

import torch

from pyg_topomask.testing import AttentionCase


class ProjectedCase(AttentionCase):
    def combined(self, attn, x, batch, pairs, weights):
        nodes = (
            x if getattr(attn, "virtual", None) is None else torch.cat([x, attn.virtual.repeat(batch.num_graphs, 1)])
        )
        width = getattr(attn, "val_dim", self.channels // attn.heads)
        values = attn.qkv(nodes)[:, -attn.heads * width :].unflatten(1, (attn.heads, -1))
        terms = weights[..., None] * values[pairs[1]]
        sums = torch.zeros_like(values).index_add(0, pairs[0], terms).flatten(1)
        return sums if attn.out is None else attn.out(sums)[: len(x)]
