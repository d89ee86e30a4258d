"""A stack of GraphGPS layers: passing edge features and carries on, and gradient checkpointing."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, ModuleList
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data

from pyg_topomask import plan as plans
from pyg_topomask.checks import check_integer
from pyg_topomask.nn.attention.base import Attention
from pyg_topomask.nn.edge_probe import Explained
from pyg_topomask.nn.gps_layer import GPSLayer, Part, check_conv_kwargs
from pyg_topomask.nn.graph_attributes import graph_of, requirements_of
from pyg_topomask.nn.mask.heat import times_read_together
from pyg_topomask.nn.named import takes_seed
from pyg_topomask.nn.planning import of_graph
from pyg_topomask.nn.pool import count_graphs
from pyg_topomask.nn.reset import Resettable
from pyg_topomask.plan import Plan
from pyg_topomask.typing import Adj


class GPSStack(Explained, Resettable, ModuleList):
    """A list of `GPSLayer` that passes edge features and carries from layer to layer.

    Args:
        channels: Width ``C``.
        num_layers: Number of layers.
        conv: Function of the layer's number (from 0) that returns its convolution, or a list of several; or the name of
            all, such as ``"gcn"``. No local branch if :obj:`None`.
        attn: Function of the layer's number that returns its attention, or a list of several; or the name of all, such
            as ``"grf"``; then the layer's number is the seed of its draws, if it has any and ``attn_kwargs`` names no
            ``seed``. No global branch if :obj:`None`. A carry goes to the next attention of the same class, even if
            layers with another class lie between. Attentions with a method ``tie(first)`` share parameters with the
            first attention of their class.
        checkpoint: Whether to compute layers again in the backward pass instead of storing their activations. This
            needs the memory of one layer instead of all, and about a third more time. Results are the same, including
            dropout and running statistics. The exception are random features, those of Performer and of
            ``kernel="softmax_rf"``: if they are redrawn between the forward and the backward pass, the gradient is
            computed with the new ones.
        **settings: Further arguments of every :class:`GPSLayer`: ``norm``, ``dropout``, ``act``, ``feed_forward``,
            ``pre_norm``, ``heads``, ``attn_kwargs``, ``norm_kwargs``, ``act_kwargs``.

    Raises:
        TypeError: If ``conv`` or ``attn`` is neither a name nor a function, or ``num_layers`` is not an integer.
        ValueError: If ``num_layers`` is not positive, a layer has neither branch, layers share an attention with an
            auxiliary loss, or ``heads`` or ``attn_kwargs`` are given without ``attn``; also as :class:`GPSLayer`.
    """

    def __init__(
        self,
        channels: int,
        num_layers: int,
        conv: Callable[[int], Part | Sequence[Part]] | str | None = None,
        attn: Callable[[int], Part | Sequence[Part]] | str | None = None,
        checkpoint: bool = False,
        **settings: Any,
    ) -> None:
        num_layers = check_integer("num_layers", num_layers, 1)
        examples = {"conv": f"GCNConv({channels}, {channels})", "attn": f"FullAttention({channels})"}
        for name, part in (("conv", conv), ("attn", attn)):
            if isinstance(part, (Module, type)) or not (callable(part) or isinstance(part, str | None)):
                raise TypeError(
                    f"'{name}' must be a name or a function of the layer's number that returns a module, "
                    f"such as lambda layer: {examples[name]} (got {part!r})"
                )
        super().__init__()
        heads, given = settings.pop("heads", 1), settings.pop("attn_kwargs", None) or {}
        for number in range(num_layers):
            local = conv(number) if callable(conv) else conv
            attends = attn(number) if callable(attn) else attn
            own = {"seed": number} if takes_seed(attn) else {}
            # A layer without attention, among others with one, takes no settings of it.
            named = {} if attends is None and attn is not None else {"heads": heads, "attn_kwargs": own | given}
            self.append(GPSLayer(channels, local, attends, **named, **settings))
        self.channels, self.checkpoint = channels, checkpoint
        first: dict[Any, Any] = {}
        seen: set[Any] = set()
        for layer in self:
            for key, part in zip(_kinds(layer), layer.attentions):
                if part in seen and isinstance(part, Attention) and part.adds_loss:
                    raise ValueError(
                        f"several layers have the same {type(part).__name__}, whose auxiliary loss would count in the "
                        "last of them only: let 'attn' return a new one for each layer"
                    )
                seen.add(part)
                if hasattr(part, "tie") and first.setdefault(key, part) is not part:
                    part.tie(first[key])

    def __iter__(self) -> Iterator[GPSLayer]:
        return super().__iter__()  # type: ignore[return-value]

    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):  # ModuleList would call the constructor of this class with the layers
            return ModuleList(list(self)[number])
        return super().__getitem__(number)

    @property
    def requires(self) -> tuple[str, ...]:
        """Attributes that the graph must carry, without repetition."""
        return requirements_of(*self)

    def takes(self, name: str) -> bool:
        """Whether a convolution of some layer accepts an argument of that name, such as ``edge_attr`` or ``pe``."""
        return any(layer.takes(name) for layer in self)

    def plan(self, graph: Data | None, batch: Tensor) -> Plan:
        """What the layers have to know of a batch, for ``stack(x, edge_index, batch, plan=plan)``.

        Args:
            graph: The ``Data`` or ``Batch`` with the attributes `requires`.
            batch: Graph of each node, sorted, shape ``[N]``.
        """
        known: dict[Any, Plan] = {}
        parts = {str(number): layer.plan(graph, batch, known) for number, layer in enumerate(self)}
        return Plan(of_graph(graph, batch, (), ("edge_attr",)), parts=parts)

    def forward(
        self,
        x: Tensor,
        edge_index: Adj,
        batch: Tensor | None = None,
        graph: Data | None = None,
        num_graphs: int | None = None,
        plan: Plan | None = None,
        **conv_kwargs: Tensor | None,
    ) -> Tensor:
        """Nodes ``[N, C]`` after all layers.

        Args:
            x: Nodes, shape ``[N, C]``.
            edge_index: Edges, shape ``[2, E]``, or a sparse ``adj_t``.
            graph: The ``Data`` or ``Batch`` with the attributes `requires`.
            batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.
            num_graphs: Number of graphs ``B``. Give it if the last graphs may be empty; if :obj:`None`, it is taken
                from ``batch``.
            plan: What `plan` has found, which replaces ``graph``.
            **conv_kwargs: ``edge_attr [E, C]``, ``pe [N, *]``, and others, as in :meth:`GPSLayer.forward`.

        Raises:
            TypeError, ValueError: As :meth:`GPSLayer.forward`.
        """
        check_conv_kwargs((conv for layer in self for conv in layer.convs), conv_kwargs)
        if graph is None and plan is None and not self.requires:
            graph = graph_of(edge_index, x.size(0), batch, None, conv_kwargs)
        # Without edge_weight, layers read that of the graph.
        given = {name: value for name, value in conv_kwargs.items() if value is not None or name == "edge_weight"}
        if num_graphs is None:
            num_graphs = count_graphs(None, batch) if plan is None else plan.num_graphs
        carries: dict[Any, Any] = {}
        with times_read_together(self) if x.is_cuda and plan is None else nullcontext():
            for number, layer in enumerate(self):
                carry = _carry_in(layer, carries, num_graphs)
                taken: dict[str, Any] = {} if plan is None else {"plan": plans.part(plan, number)}
                taken |= {name: value for name, value in given.items() if value is None or layer.takes(name)}
                call = partial(_checkpointed, layer) if self.checkpoint and torch.is_grad_enabled() else layer
                result = call(x, edge_index, batch, graph, carry, **taken)
                if carry is not None:
                    result, carry = result
                    carries.update(zip(_kinds(layer), carry if isinstance(carry, list) else [carry]))
                if isinstance(result, tuple):
                    x, given["edge_attr"] = result
                else:
                    x = result
        return x


def _kinds(layer: GPSLayer) -> list[tuple[type, int]]:
    """For each attention of a layer its class and its rank among the layer's attentions of that class.

    Attentions of the same kind in different layers pass a carry on and are tied.
    """
    types = [type(part) for part in layer.attentions]
    return [(kind, types[:number].count(kind)) for number, kind in enumerate(types)]


def _carry_in(layer: GPSLayer, carries: dict[Any, Any], num_graphs: int) -> Any:
    """The carry for a layer: for each attention the last carry of its kind, or its initial one."""
    start = layer.initial_carry(num_graphs)
    if isinstance(start, list):
        return [None if own is None else carries.get(kind, own) for kind, own in zip(_kinds(layer), start)]
    return None if start is None else carries.get(_kinds(layer)[0], start)


@torch.compiler.disable  # in compiled code, the repeated run would change running statistics
def _checkpointed(layer: GPSLayer, *inputs: Any, **more: Any) -> Any:
    """The layer's results, for which the backward pass runs it again."""
    contexts: Any = lambda: (nullcontext(), _frozen_statistics(layer))  # noqa: E731
    return checkpoint(layer, *inputs, use_reentrant=False, context_fn=contexts, **more)


@contextmanager
def _frozen_statistics(layer: Module) -> Iterator[None]:
    """Keep running statistics unchanged, because the layer has already seen these rows."""
    norms = [part for part in layer.modules() if isinstance(part, _NormBase)]  # batch and instance norms
    momenta = [norm.momentum for norm in norms]
    tracked = [norm.num_batches_tracked for norm in norms if norm.num_batches_tracked is not None]
    counts = [(count, count.clone()) for count in tracked]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
        for count, before in counts:
            count.copy_(before)
