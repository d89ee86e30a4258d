"""Softmax, random-feature, block-sparse attention and PyG's linear ones: each against a slow dense reference."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Batch
from torch_geometric.nn.attention import PolynormerAttention as PyGPolynormer
from torch_geometric.nn.attention import SGFormerAttention as PyGSGFormer

from pyg_topomask.nn import (
    ATTENTION,
    BigBirdAttention,
    FullAttention,
    GPSModel,
    MaskedAttention,
    PerformerAttention,
    PolynormerAttention,
    SGFormerAttention,
)
from pyg_topomask.ops import all_pairs
from pyg_topomask.ops.block_sparse import block_sparse_support
from pyg_topomask.testing import GRAPHS, AttentionCase, dense_adjacency, permute


class TestFull(AttentionCase):
    def build(self):
        return ATTENTION["Transformer"](8, heads=2)


class TestFullBiased(AttentionCase):
    def build(self):
        return FullAttention(8, heads=2, attn_bias="attn_bias")

    def prepare(self, data):
        adj = dense_adjacency(data).flatten()
        data.attn_bias = torch.stack([adj, 2 - adj], dim=1).float()
        return data

    def permute(self, data, perm):
        pairs = {pair: row for row, pair in enumerate(map(tuple, all_pairs(data.batch).t().tolist()))}
        moved, (query, key) = permute(data, perm), perm[all_pairs(data.batch)].tolist()
        moved.attn_bias = data.attn_bias[[pairs[pair] for pair in zip(query, key)]]
        return moved


class TestPerformer(AttentionCase):
    def build(self):
        return ATTENTION["Performer"](8, heads=2, num_features=12)


class TestBigBird(AttentionCase):
    equivariant = False

    def build(self):
        return ATTENTION["BigBird"](8, heads=2, block_size=1, num_random=1)


class TestBigBirdBlocks(AttentionCase):
    names = ("path", "single", "two_parts", "star")  # few blocks: full attention, which is equivariant

    def build(self):
        return BigBirdAttention(8, heads=2)


class TestSGFormer(AttentionCase):
    def build(self):
        return ATTENTION["SGFormer"](8, heads=2)


class TestPolynormer(AttentionCase):
    def build(self):
        return ATTENTION["Polynormer"](8, heads=2)


class TestPolynormerUnshared(AttentionCase):
    def build(self):
        return PolynormerAttention(8, heads=4, qk_shared=False, bias=True)
