"""The GraphGPS layer: message passing and attention in parallel."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module, ModuleList
from torch_geometric.data import Data

from pyg_topomask import plan as plans
from pyg_topomask.checks import check_dtype, check_names, warn_once
from pyg_topomask.nn.attention.base import has_carry
from pyg_topomask.nn.dropout import Dropout
from pyg_topomask.nn.edge_probe import Explained
from pyg_topomask.nn.graph_attributes import (
    check_planned,
    graph_of,
    one_line,
    requirements_of,
    weight_of_edges,
    with_weight,
)
from pyg_topomask.nn.named import as_attention, as_conv
from pyg_topomask.nn.norm import accepts, apply_norm, build_act, build_norm
from pyg_topomask.nn.planning import kind_of, of_graph
from pyg_topomask.nn.reset import Resettable
from pyg_topomask.ops.csr import is_sparse
from pyg_topomask.plan import Plan
from pyg_topomask.typing import Adj

Part = Module | str
"""A branch, or its name."""


class GPSLayer(Explained, Resettable):
    r"""One GraphGPS layer with any PyG convolution and any attention of this package.

    .. math::
        X_M &= \mathrm{Norm}(\mathrm{Dropout}(\mathrm{MPNN}(X, E, A)) + X) \\
        X_A &= \mathrm{Norm}(\mathrm{Dropout}(\mathrm{Attn}(X)) + X) \\
        X_{out} &= \mathrm{Norm}(X' + \mathrm{MLP}(X')), \qquad X' = X_M + X_A

    Reference: Rampášek et al., *Recipe for a General, Powerful, Scalable Graph Transformer*, NeurIPS 2022,
    arXiv:2205.12454, Section 3.2.

    Args:
        channels: Width ``C``.
        conv: Convolution, called as ``conv(x, edge_index, **conv_kwargs)``, or the name of one of PyG, such as
            ``"gcn"``; ``"gatedgcn"`` is `GatedGCN`. It returns ``x``, or ``(x, edge_attr)`` if
            it updates edges. If its attribute ``has_residual`` is true, it applies dropout and adds ``x`` itself, as
            `GatedGCN` does, and the layer adds only the norm. No local branch if :obj:`None`.
            A list makes several branches, each with its own norm. All read the same ``x``, each gets the
            ``conv_kwargs`` that it accepts, and their sum is :math:`X_M`. At most one of them should update edges,
            because only the last update is returned. An empty list without ``attn`` leaves the feed-forward part alone,
            with :math:`X' = X`: a network on each node, which does not read the edges.
        attn: Attention, called as ``attn(x, batch, graph)``, or a list of several. No global branch if :obj:`None`.
            A name in :data:`~pyg_topomask.nn.ATTENTION`, in upper or lower case, such as ``"grf"``, builds one. It may
            also be an attention of :mod:`torch_geometric.nn.attention`, :class:`torch.nn.MultiheadAttention`, or a
            convolution such as ``TransformerConv``, which attends along the edges. PyG's attentions have names, too:
            ``"pyg.SGFormer"``.
        norm: ``"batch_norm"``, ``"layer_norm"`` (over the nodes and channels of each graph, as in GraphGPS),
            ``"node_layer_norm"`` (over the channels of each node, as in transformers of text and images),
            ``"graph_norm"`` (over the nodes of each graph, as in Exphormer) or :obj:`None`. It may also be the name of
            another norm of PyG, or a module, which is copied for each place.
        dropout: Probability of zeroing an entry in both branches and the feed-forward part, in training.
        act: Activation of the feed-forward part, by PyG's names, or a module, which is copied.
        feed_forward: Whether the two-layer MLP of hidden width ``2 C`` follows. Without it the layer returns
            :math:`X'`.
        pre_norm: Whether to normalise the input of each part and not its output, as in vision transformers:
            :math:`X' = X + \mathrm{MPNN}(\mathrm{Norm}(X)) + \mathrm{Attn}(\mathrm{Norm}(X))` and
            :math:`X_{out} = X' + \mathrm{MLP}(\mathrm{Norm}(X'))`, with dropout of each update. The output is not
            normalised, so a stack needs a norm after its last layer.
        heads: Number of heads of attentions that are given by name. A module with another number is refused. A
            convolution with several heads is given as a module, such as ``GATConv(64, 16, heads=4)``.
        attn_kwargs: Their further arguments, which are copied for each place, such as a ``mask``.
        norm_kwargs, act_kwargs: Further arguments of norms and of the activation that are given by name.

    Raises:
        TypeError: If a branch is neither a module nor a name, or a convolution of that name needs more than widths.
        ValueError: If a branch has another width, both branches are :obj:`None`, or missing without ``feed_forward``, a
            name is unknown, ``dropout`` is not in [0, 1], with ``pre_norm`` a convolution adds its input itself, or
            ``heads`` or further arguments are given for a module, which has its own, or without ``attn``.
    """

    def __init__(
        self,
        channels: int,
        conv: Part | Sequence[Part] | None = None,
        attn: Part | Sequence[Part] | None = None,
        norm: str | Module | None = "batch_norm",
        dropout: float = 0.0,
        act: str | Module = "relu",
        feed_forward: bool = True,
        pre_norm: bool = False,
        heads: int = 1,
        attn_kwargs: Mapping[str, Any] | None = None,
        norm_kwargs: Mapping[str, Any] | None = None,
        act_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if conv is None and attn is None:
            raise ValueError("a GPSLayer needs 'conv' or 'attn' (both are None); conv=[] is a layer without branches")
        if attn is None and (attn_kwargs or heads != 1):
            raise ValueError(
                "'heads' and 'attn_kwargs' are for attentions given by name (got None as 'attn'); a convolution with "
                "several heads is given as a module, such as GATConv"
            )
        self.channels = channels
        self.conv = _branches(conv, lambda part: as_conv(part, channels))
        self.attn = _branches(attn, lambda part: as_attention(part, channels, heads, attn_kwargs))
        if self.conv is None and self.attn is None and not feed_forward:
            raise ValueError("a GPSLayer without branches needs feed_forward=True (got False)")
        for part in self.convs:
            accepts(part, "edge_attr")  # reads its signature now, because torch.compile cannot
            if pre_norm and _has_residual(part):
                raise ValueError(
                    f"{type(part).__name__} adds its input itself, which would then be normalised; use pre_norm=False"
                )
        self.pre_norm = pre_norm
        self.norm_conv, self.norm_attn = (_norms(part, norm, channels, norm_kwargs) for part in (self.conv, self.attn))
        self.dropout = Dropout(dropout)
        self.mlp = self.norm_out = None
        if feed_forward:
            first, second = Linear(channels, 2 * channels), Linear(2 * channels, channels)
            self.mlp = _FeedForward([first, build_act(act, act_kwargs), Dropout(dropout), second, Dropout(dropout)])
            self.norm_out = build_norm(norm, channels, norm_kwargs)

    @property
    def convs(self) -> list[Module]:
        """The convolutions; there may be none or several."""
        return _listed(self.conv)

    @property
    def attentions(self) -> list[Any]:
        """The attentions; there may be none or several."""
        return _listed(self.attn)

    @property
    def requires(self) -> tuple[str, ...]:
        """Attributes that the graph must carry, without repetition."""
        return requirements_of(*self.attentions)

    def takes(self, name: str) -> bool:
        """Whether a convolution accepts an argument of that name, such as ``edge_attr`` or ``pe``."""
        return any(accepts(conv, name) for conv in self.convs)

    def initial_carry(self, num_graphs: int) -> Any:
        """The carry of the first layer: None if no attention has one, and a list if there are several attentions."""
        if not any(has_carry(part) for part in self.attentions):
            return None
        carries = [part.initial_carry(num_graphs) if has_carry(part) else None for part in self.attentions]
        return carries if isinstance(self.attn, ModuleList) else carries[0]

    def plan(self, graph: Data | None, batch: Tensor, known: dict[Any, Plan] | None = None) -> Plan:
        """What the attentions have to know of a batch, for ``layer(x, edge_index, batch, plan=plan)``.

        Args:
            graph: The ``Data`` or ``Batch`` with the attributes `requires`.
            batch: Graph of each node, sorted, shape ``[N]``.
            known: Plans of attentions of other layers, by their kind; those of this layer are added.
        """
        known = {} if known is None else known
        parts = {}
        for number, attn in enumerate(self.attentions):
            kind = kind_of(attn)
            if kind not in known:
                known[kind] = attn.plan(graph, batch)
            parts[str(number)] = known[kind]
        return Plan(of_graph(graph, batch, (), ("edge_attr",)), parts=parts)

    def forward(
        self,
        x: Tensor,
        edge_index: Adj,
        batch: Tensor | None = None,
        graph: Data | None = None,
        carry: Any = None,
        plan: Plan | None = None,
        **conv_kwargs: Any,
    ) -> Any:
        """Apply the layer.

        Args:
            x: Nodes, shape ``[N, C]``.
            edge_index: Edges, shape ``[2, E]``, or a sparse ``adj_t``.
            batch: Graph of each node, sorted, shape ``[N]``; ``graph.batch`` or one graph if :obj:`None`.
            graph: The ``Data`` or ``Batch`` with the attributes `requires`. If nothing is required, it may be left out.
            carry: The carry that the previous layer returned, for attentions that have one. The first layer takes
                `initial_carry`. Without it, attention starts from its initial carry, with a warning.
            plan: What `plan` has found, which replaces ``graph``.
            **conv_kwargs: Further arguments of the convolutions, such as ``edge_attr``; each gets those it accepts.
                ``edge_weight`` is the graph's own by default; a convolution that does not accept it is named once, in
                a warning.

        Returns:
            ``x``, or ``(x, edge_attr)`` if the convolution updates edges. With a carry, ``(that, carry)``.

        Raises:
            TypeError: If no convolution accepts an argument, or ``x`` is no tensor of the parameters' dtype.
            ValueError: If the graph has not one weight for each edge, or only the plan has weights.
        """
        check_dtype(self, x)
        check_conv_kwargs(self.convs, conv_kwargs)
        if plan is None:
            check_planned(graph)
        else:
            batch = plan.batch
        if "edge_weight" not in conv_kwargs:
            weight = weight_of_edges(graph, edge_index, x.dtype)
            planned = None if plan is None else plan.given.get("edge_weight")
            if weight is None and planned is not None and self.takes("edge_weight") and not is_sparse(edge_index):
                raise ValueError("the plan is of a graph with 'edge_weight': call with edge_weight=… as well")
            conv_kwargs["edge_weight"] = weight
        if batch is None and graph is not None:
            batch = graph.get("batch")
        if graph is None and plan is None and self.attentions and not self.requires:
            graph = graph_of(edge_index, x.size(0), batch, None, conv_kwargs)
        with plans.read(plan):
            local, edges = self._local(x, edge_index, batch, conv_kwargs)
            distant, next_carries = self._global(x, batch, graph, carry, plan)
            branches = local + distant
            out = sum(branches[1:], branches[0]) if branches and not self.pre_norm else sum(branches, x)
            if self.mlp is not None and self.pre_norm:
                out = self.mlp(apply_norm(self.norm_out, out, batch), out)
            elif self.mlp is not None:
                out = apply_norm(self.norm_out, self.mlp(out, out), batch)
        result = (out, *edges) if edges else out
        if carry is None:
            return result
        return result, next_carries if isinstance(self.attn, ModuleList) else next_carries[0]

    def _local(
        self, x: Tensor, edge_index: Adj, batch: Tensor | None, conv_kwargs: dict[str, Any]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The branches of the convolutions, and the edge features that one of them updated, if any."""
        branches: list[Tensor] = []
        edges: list[Tensor] = []
        weight = conv_kwargs.pop("edge_weight")
        for conv, norm in zip_longest(self.convs, _listed(self.norm_conv)):
            known = {name: value for name, value in conv_kwargs.items() if accepts(conv, name)}
            local = conv(self._branch_input(norm, x, batch), edge_index, **with_weight(conv, known, weight, edge_index))
            if isinstance(local, tuple):
                local, *edges = local
            if _has_residual(conv):
                branches.append(apply_norm(norm, local, batch))
            else:
                branches.append(self._branch_output(norm, local, x, batch))
        return branches, edges

    def _global(
        self, x: Tensor, batch: Tensor | None, graph: Data | None, carry: Any, plan: Plan | None
    ) -> tuple[list[Tensor], list[Any]]:
        """The branches of the attentions, and their carries for the next layer."""
        branches, next_carries = [], []
        attentions = self.attentions
        carries = carry if isinstance(self.attn, ModuleList) and carry is not None else [carry] * len(attentions)
        for number, (attn, norm, given) in enumerate(zip_longest(attentions, _listed(self.norm_attn), carries)):
            nodes = self._branch_input(norm, x, batch)
            more = {} if plan is None else {"plan": plans.part(plan, number)}
            if given is None:
                _warn_of_no_carry(attn)
                update = attn(nodes, batch, graph, **more)
            else:
                update, given = attn(nodes, batch, graph, carry=given, **more)
            next_carries.append(given)
            branches.append(self._branch_output(norm, update, x, batch))
        return branches, next_carries

    def _branch_input(self, norm: Module | None, x: Tensor, batch: Tensor | None) -> Tensor:
        return apply_norm(norm, x, batch) if self.pre_norm else x

    def _branch_output(self, norm: Module | None, update: Tensor, x: Tensor, batch: Tensor | None) -> Tensor:
        """The update of a branch; without ``pre_norm``, it is added to ``x`` and normalised."""
        return self.dropout(update) if self.pre_norm else apply_norm(norm, self.dropout(update, x), batch)

    def __repr__(self) -> str:
        return f"GPSLayer({self.channels}, conv={one_line(self.conv)}, attn={one_line(self.attn)})"


class _FeedForward(ModuleList):
    """Linear map, activation, dropout, linear map and dropout, which are called in few passes over the memory."""

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """The result for ``x``, plus ``residual``."""
        steps: Any = self
        first, act, dropout, second, last = steps
        return last(second(dropout.after(act, first(x))), residual)


def check_conv_kwargs(convs: Iterable[Module], given: Mapping[str, Any]) -> None:
    """Refuse an argument that no convolution accepts, except :obj:`None`. Raises TypeError."""
    names = [name for name, value in given.items() if value is not None]
    convs = list(convs)
    unknown = [name for name in names if not any(accepts(conv, name) for conv in convs)]
    if "edge_attr" in unknown:
        raise TypeError(
            "no convolution takes 'edge_attr': leave it out (attentions read that of the graph), or give one such as "
            "GATConv(C, C, edge_dim=C)"
        )
    if unknown:
        known = [name for conv in convs for name in signature(conv.forward).parameters]
        taker = " and ".join(dict.fromkeys(type(conv).__name__ for conv in convs)) or "a layer without convolution"
        check_names(taker, unknown, [name for name in dict.fromkeys(known) if name not in ("x", "edge_index")])


def _has_residual(conv: Module) -> bool:
    return bool(getattr(conv, "has_residual", False))


def _branches(given: Part | Sequence[Part] | None, build: Callable[[Part], Module]) -> Module | None:
    """The module, a list of several, or None."""
    given = [given] if isinstance(given, str) or not isinstance(given, Sequence | None) else given
    parts = [build(part) for part in given or ()]
    if len(parts) > 1:
        return ModuleList(parts)
    return parts[0] if parts else None


def _norms(part: Module | None, *norm: Any) -> Module | None:
    if not isinstance(part, ModuleList):
        return build_norm(*norm) if part is not None else None
    norms = [built for _ in part if (built := build_norm(*norm)) is not None]
    return ModuleList(norms) if norms else None


def _listed(part: Module | None) -> list[Any]:
    """The modules of a branch, or their norms; none if it is absent."""
    if part is None:
        return []
    return list(part) if isinstance(part, ModuleList) else [part]


def _warn_of_no_carry(attn: Module) -> None:
    """Warn if an attention starts from its initial carry although an earlier layer may have passed one on."""
    if has_carry(attn) and not torch.compiler.is_compiling():
        name = type(attn).__name__
        warn_once(
            f"{name} without carry",
            f"{name} passes a carry from layer to layer, but this GPSLayer was called without 'carry', which in a "
            "stack is another model: give each layer the carry of the one before it, or use GPSStack or GPSModel",
            stacklevel=8,  # the line that calls the layer
        )
