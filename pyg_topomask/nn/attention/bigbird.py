"""Block-sparse attention in node order."""

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.checks import check_integer
from pyg_topomask.nn.attention.masked import MaskedAttention
from pyg_topomask.nn.card import Card, keys_of
from pyg_topomask.operators.sparse_factor import Factor, SparseFactorOperator
from pyg_topomask.ops.edges.block_sparse import block_sparse_support
from pyg_topomask.ops.segment import batch_of_rows


class BigBirdAttention(MaskedAttention):
    r"""Softmax attention of each block of nodes to neighbouring, random and global blocks of its graph.

    The nodes of a graph are cut, in order, into blocks of ``block_size``. The first and the last block attend to all
    nodes, and all nodes attend to them. Every other block also attends to itself, to both neighbours and to
    ``num_random`` further blocks. So a graph of few blocks gets full attention.

    Reference: Zaheer et al., *Big Bird: Transformers for Longer Sequences*, NeurIPS 2020, arXiv:2007.14062, Section 2.
    The random blocks are a function of ``seed`` and the graph's number of nodes, and all heads share them. So the
    graphs of a batch do not influence each other. Nothing is padded.

    **Not equivariant**: the result depends on the order of the nodes, which is arbitrary in a graph. The class exists
    for comparison with the papers' tables.

    Cost: :math:`O(N b (5 + r) C)` for ``N`` nodes, ``b`` nodes per block and ``r`` random blocks.

    Args:
        channels: Width ``C`` of input and output.
        heads: Number of heads ``H``.
        block_size: Nodes per block; 3, as in GraphGPS.
        num_random: Random blocks that each block attends to; 3, as in GraphGPS.
        seed: Seed of the random blocks. Give each layer its own so that layers see different blocks.
        dropout: Probability of zeroing an entry of the result before the output projection, in training.
        bias: Whether the projections have a bias.

    Raises:
        TypeError: If a size or count is not an integer.
        ValueError: If ``heads`` does not divide ``channels``, or a count or ``dropout`` is out of range.
    """

    card = Card(
        formula="blocks of nodes, in their order",
        learns="projections",
        cost="N",
        when="for comparison with the papers' tables",
        reach="order",
        examples=({"block_size": 1, "num_random": 1},),
    )
    config_keys = keys_of(
        "heads", "seed", "dropout", block_size="gt.bigbird.block_size", num_random="gt.bigbird.num_random_blocks"
    )

    def __init__(
        self,
        channels: int,
        heads: int = 1,
        block_size: int = 3,
        num_random: int = 3,
        seed: int = 0,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__(channels, heads, "softmax", path="pairwise", dropout=dropout, bias=bias)
        block_size = check_integer("block_size", block_size, 1)
        num_random = check_integer("num_random", num_random, 0)
        seed = check_integer("seed", seed)
        self.block_size, self.num_random, self.seed = block_size, num_random, seed

    def build_mask(self, x: Tensor, batch: Tensor | None, graph: Data | None) -> SparseFactorOperator:
        """Ones on the pairs of nodes whose blocks see each other."""
        pattern = block_sparse_support(batch_of_rows(batch, x), self.block_size, self.num_random, self.seed)
        ones = torch.ones(pattern.nnz, device=x.device)
        return SparseFactorOperator(Factor(pattern, ones), None, x.size(0))
