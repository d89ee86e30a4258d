"""Every attention by its definition: slow, dense, and without the code of the library."""

from functools import partial

import torch

from pyg_topomask import nn
from pyg_topomask.ops import all_pairs

FEATURES = {
    "relu": lambda x: x.clamp(min=0),
    "elu1": lambda x: torch.where(x > 0, x + 1, x.exp()),
    "square": torch.square,
    "exp": torch.exp,
}


def masked(attn, x, batch, carry):
    """All pairs of nodes, weighted by the kernel and the matrix of the mask."""
    mask = attn.build_mask(x, batch.batch, batch) if isinstance(attn, nn.MaskedAttention) else None
    name, heads = getattr(attn, "kernel", "softmax"), []
    ones = (batch.batch[:, None] == batch.batch).to(x.dtype)
    matrix, bound = (ones, ones) if mask is None else (mask.to_dense(), mask.bound.to_dense())
    bias = torch.zeros(attn.heads, len(x), len(x), dtype=x.dtype)
    if getattr(attn, "attn_bias", None) is not None:
        row, col = all_pairs(batch.batch)
        bias[:, row, col] = batch[attn.attn_bias].to(x.dtype).t()
    by_head = attn.qkv(x).view(len(x), 3, attn.heads, -1).permute(2, 1, 0, 3)
    for h, (q, k, v) in enumerate(by_head):
        if name == "softmax":
            kernel = (q @ k.t() * q.size(-1) ** -0.5 + bias[h]).exp()
        elif name == "softmax_rf":
            omega, scale = attn.feature_map.projection, q.size(-1) ** -0.25
            phi = lambda y: (scale * y @ omega.t() - (scale * y).square().sum(1, keepdim=True) / 2).exp()  # noqa: B023, E731
            kernel = phi(q) @ phi(k).t()
        else:
            kernel = FEATURES[name](q) @ FEATURES[name](k).t()
        own, least = (part[h] if part.dim() == 3 else part for part in (matrix, bound))
        total = (least * kernel).sum(1, keepdim=True)
        heads.append(own * kernel @ v / torch.where(total > 0, total, 1))
    return attn.out(torch.cat(heads, 1))


def exphormer(attn, x, batch, carry):
    """A dense matrix of exponentials for each type of edge."""
    n, graphs, v_nodes, width = x.size(0), batch.num_graphs, attn.num_virtual, attn.channels // attn.heads
    hidden = carry + attn.virtual if v_nodes else carry
    nodes = torch.cat([x, hidden.reshape(-1, attn.channels)])
    graph = torch.cat([batch.batch, torch.arange(graphs).repeat_interleave(v_nodes)])
    same, is_virtual = graph[:, None] == graph, torch.arange(len(nodes)) >= n
    lists = [batch.edge_index[:, : None if attn.graph_edges else 0]]
    lists += [batch.expander_index.long()] if attn.expander else []
    counts = []
    for source, target in lists:  # receiver × sender
        one, count = torch.ones(len(source), dtype=x.dtype), torch.zeros(len(nodes), len(nodes), dtype=x.dtype)
        counts.append(count.index_put((target, source), one, accumulate=True))
    if v_nodes:
        counts.append((same & is_virtual[:, None] & ~is_virtual).to(x.dtype))
        counts.append((same & ~is_virtual[:, None] & is_virtual).to(x.dtype))
    q, k, v = attn.qkv(nodes).split(attn.channels, 1)
    heads = []
    for h in range(attn.heads):
        part, weight = slice(h * width, (h + 1) * width), 0
        for kind, count in enumerate(counts):
            score = (q[:, None, part] * k[None, :, part] * attn.edge_type[kind, part]).sum(-1)
            terms = (score / width**0.5).exp()
            if kind == 0 and attn.edge is not None:
                j, i = batch.edge_index
                extra = q[i, part] * k[j, part] * (batch.edge_attr.double() @ attn.edge.weight[part].t())
                each = terms[i, j] * (extra.sum(1) / width**0.5).exp()
                count, terms = 1, torch.zeros_like(terms).index_put((i, j), each, accumulate=True)
            weight = weight + count * terms
        total = weight.sum(1, keepdim=True)
        heads.append(weight @ v[:, part] / torch.where(total > 0, total, 1))
    out = attn.out(torch.cat(heads, 1))
    return out[:n], out[n:].view(graphs, v_nodes, attn.channels)


def san(attn, x, batch, carry):
    """Exponentials of all pairs in one dense matrix, weighted by both factors."""
    n, width = x.size(0), attn.channels // attn.heads
    same = (batch.batch[:, None] == batch.batch) & ~torch.eye(n, dtype=torch.bool)
    q, k, v = attn.qkv(x).split(attn.channels, 1)
    real, absent = 1 / (1 + attn.gamma), attn.gamma / (1 + attn.gamma)
    (j, i), one = batch.edge_index, torch.ones(n, n, dtype=x.dtype)
    e = attn.edge_vector.expand(len(i), -1) if attn.edge is None else attn.edge(batch.edge_attr.to(x.dtype))
    heads = []
    for h in range(attn.heads):
        part = slice(h * width, (h + 1) * width)
        score = (q[i, part] * k[j, part] * e[:, part]).sum(1) / width**0.5
        weight = torch.zeros_like(one).index_put((i, j), real * score.exp(), accumulate=True)
        if attn.full_graph:
            q2, k2 = attn.absent_qk(x).split(attn.channels, 1)
            e2 = attn.absent_vector if attn.absent is None else attn.absent(attn.absent_vector)
            score = (q2[:, part] * e2[part]) @ k2[:, part].t() / width**0.5
            hidden = (~same).index_put((i, j), torch.tensor(True))
            weight = weight + absent * score.exp().masked_fill(hidden, 0)
        total = weight.sum(1, keepdim=True)
        heads.append(weight @ v[:, part] / torch.where(total > 0, total, 1))
    return attn.out(torch.cat(heads, 1))


def kmip(attn, x, batch, carry):
    heads = []
    widths = [attn.heads * width for width in (attn.kq_dim, attn.kq_dim, attn.val_dim)]
    parts = (y.unflatten(1, (attn.heads, -1)).unbind(1) for y in attn.qkv(x).split(widths, dim=1))
    for q, k, v in zip(*parts):
        score = (q @ k.t() / attn.kq_dim**0.5).masked_fill(batch.batch[:, None] != batch.batch, -torch.inf)
        kept = score >= score.topk(attn.k)[0][:, -1:]
        heads.append(score.masked_fill(~kept, -torch.inf).softmax(1) @ v)
    return torch.cat(heads, 1) if attn.out is None else attn.out(torch.cat(heads, 1))


def primphormer(attn, x, batch, carry):
    """Output, carry and J², with f_X formed for each graph."""
    sizes = batch.ptr.diff().tolist()
    means = torch.stack([rows.sum(0) / max(len(rows), 1) for rows in x.split(sizes)])
    carry = carry + attn.virtual(means)
    f_x = (attn.projection + carry[:, :, None])[batch.batch]  # [N, s, N_s]
    width, outs, objective = attn.channels // attn.heads, [], 0
    for h in range(attn.heads):
        part = slice(h * width, (h + 1) * width)
        q, k = (y[:, part] / y[:, part].norm(dim=1, keepdim=True) for y in attn.qk(x).split(attn.channels, 1))
        pairs = ((attn.weight_e, q), (attn.weight_r, k))
        e, r = (torch.einsum("isv,vd,id->is", f_x, weight[:, part], y) for weight, y in pairs)
        outs.append(attn.out(torch.cat([e, r], dim=1)))
        energy = ((e.square() + r.square()) @ attn.sqrt_lambda[h].square()).sum() / (2 * len(x))
        objective = objective + (energy - (attn.weight_e * attn.weight_r)[:, part].sum()) / attn.heads
    return torch.cat(outs, dim=1), carry, objective.square()


def primal(attn, x, batch, carry):
    """Output and J², with f(X) formed for each node's graph from nodes at evenly spaced positions."""
    width, rows, objective = attn.channels // attn.heads, [], 0
    for i, graph in enumerate(batch.batch.tolist()):
        first, last = int(batch.ptr[graph]), int(batch.ptr[graph + 1]) - 1
        f_x = x[torch.linspace(first, last, attn.num_samples, dtype=torch.float64).add(1e-9).long()]  # [samples, C]
        heads = []
        for h in range(attn.heads):
            part = slice(h * width, (h + 1) * width)
            q, k = (y[part] / y[part].norm() for y in attn.qk(x[i]).split(attn.channels))
            e = (f_x[:, part].t() @ attn.weight_e[h]).t() @ q
            r = (f_x[:, part].t() @ attn.weight_r[h]).t() @ k
            heads.append(attn.out(torch.cat([e, r])))
            energy = ((e.square() + r.square()) @ attn.sqrt_lambda[h].square()) / (2 * len(x))
            objective = objective + energy / attn.heads
        rows.append(torch.cat(heads))
    trace = sum(torch.trace(e.t() @ r) for e, r in zip(attn.weight_e, attn.weight_r)) / attn.heads
    return torch.stack(rows), (objective - trace).square()


DEFINITIONS = {
    **dict.fromkeys(("BigBird", "GKAT", "GRF", "Linear", "Masked", "Performer", "Transformer"), masked),
    "Exphormer": exphormer,
    "KMIP": kmip,
    "Primal": primal,
    "Primphormer": primphormer,
    "SAN": san,
}
REFERENCES = {nn.ATTENTION[name]: of for name, of in DEFINITIONS.items()}
"""Class -> its definition, called as ``(attn, x, batch, carry)``."""

VARIANTS = {
    "Exphormer, two virtual nodes": partial(nn.ExphormerAttention, num_virtual=2, bias=False),
    "Exphormer, edge features": partial(nn.ExphormerAttention, edge_dim=3),
    "Exphormer, edge features alone": partial(nn.ExphormerAttention, edge_dim=3, expander=False),
    "Linear, exponential": partial(nn.MaskedAttention, kernel="exp"),
    "Primal, more samples than nodes": partial(nn.PrimalAttention, num_samples=7, rank=2, bias=False),
    "Primphormer, no bias": partial(nn.PrimphormerAttention, num_virtual=2, rank=4, bias=False),
    "SAN, edge features": partial(nn.SANAttention, gamma=0.2, edge_dim=3, bias=True),
    "SAN, tiny gamma": partial(nn.SANAttention, gamma=1e-6, edge_dim=3),
    "SAN, neighbours": partial(nn.SANAttention, full_graph=False, edge_dim=3),
}
"""Settings beyond the examples of the classes."""
