"""The base class of attentions: what each of them promises, and what it may add."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, Literal, TypeVar, cast, overload

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Batch, Data

from pyg_topomask import plan as plans
from pyg_topomask.checks import NonFiniteError, check_dtype, check_heads, check_integer, is_exporting, readable
from pyg_topomask.nn.attention.dense import check_same_batch, flat_nodes
from pyg_topomask.nn.card import Described
from pyg_topomask.nn.edge_probe import EdgeProbe, ending_explanations
from pyg_topomask.nn.graph_attributes import PlannedGraph, batch_of, check_homogeneous, with_attributes
from pyg_topomask.nn.planning import as_learned, for_plan, of_graph
from pyg_topomask.ops.attention.weights import PairWeights, Rows, pairs_of_rows
from pyg_topomask.ops.segment import check_batch
from pyg_topomask.plan import Plan

Forward = TypeVar("Forward", bound=Callable[..., Any])


def uncompiled(forward: Forward) -> Forward:
    """Let ``torch.compile`` call an attention's ``forward`` as it is where there is no plan: patterns, blocks and sizes
    depend on the values of a batch, which tracing does not know. ``torch.export`` needs a plan.
    """
    as_it_is = torch.compiler.disable(forward)

    @wraps(forward)
    def call(self: Any, *inputs: Any, **more: Any) -> Any:
        if plans.reading():
            return forward(self, *inputs, **more)
        if is_exporting():
            raise RuntimeError(
                f"torch.export takes {type(self).__name__} with a plan, attn.plan(graph): export a module whose "
                "forward(x, plan) returns attn(x, plan=plan)"
            )
        if isinstance(inputs[0], Tensor) and inputs[0].is_floating_point():
            check_dtype(self, inputs[0])
        return as_it_is(self, *inputs, **more)

    return cast(Forward, call)


class Attention(Described):
    r"""Base class of attentions: ``attn(x [N, C], batch=None, graph=None) → [N, C]``.

    It also takes PyG's dense form, ``attn(x [B, N, C], mask [B, N])``, and jagged nested tensors ``[B, j, C]``. The
    result has the form of ``x``, with zeros where the mask is false; ``graph`` then holds the nodes in row order.

    A subclass defines ``forward``, which should begin with :func:`check_input`. The rest is optional:

    * **Graph attributes.** ``requires`` names the attributes that the graph must carry.
    * **Edge features.** ``edge_dim`` is the width of ``graph.edge_attr`` if the attention reads it, else :obj:`None`.
    * **Carry.** An attention that passes state to the same attention of the next layer has
      ``initial_carry(num_graphs)``. Called with ``carry=``, it returns ``(x, carry)``. Called without, it uses the
      initial carry and returns ``x``.
    * **Shared parameters.** ``tie(first)`` makes a layer share parameters with an earlier one of the same class.
    * **Attention along edges.** ``edge_attention(x, edge_index)`` gives the weight of each edge among the edges of its
      first node, ``[E]``, for layer inputs ``x``. The walks of dynamic GKAT follow it.
    * **Tokens.** ``accepts_tokens`` says whether the attention works with graph tokens, which are nodes that the tables
      of the graph do not number. By default, it does if it requires no attributes.
    * **Loss.** A class whose ``adds_loss`` is true sets ``self.auxiliary_loss`` to a scalar in each forward pass.
      :func:`~pyg_topomask.nn.auxiliary_loss` sums these terms over a model.
    * **Weights.** ``_weights(x, batch, graph, rows)`` gives the pairs and weights that `attention_weights` returns.
      Without this method, the attention refuses. Every attention of the package has it, unless it forms no weights.
    * **Dropout.** The argument ``dropout`` acts in training only: on the normalised weights, or on the result before
      the output projection if an attention may not form the weights (linear attention, `MaskedAttention` and its
      subclasses).
    * **Configs.** ``config_keys`` maps constructor arguments to the config keys that set them. An argument without a
      key keeps its default, and so does one whose ``topomask`` key is not given. The key ``seed`` gives each run and
      layer a different number.

    .. code-block:: python

        class MeanAttention(Attention):
            config_keys = {"heads": "gt.n_heads"}

            def __init__(self, channels: int, heads: int = 1) -> None:
                super().__init__(channels, heads)
                self.out = Linear(channels, channels)

            def forward(self, x, batch=None, graph=None):
                batch = check_input(x, self.channels, batch, graph)
                batch = x.new_zeros(len(x), dtype=torch.long) if batch is None else batch
                return self.out(global_mean_pool(x, batch)[batch])


        register_attention("OwnMean", MeanAttention)  # gt.layer_type: GCN+OwnMean

    Args:
        channels: Width ``C`` of input and output.
        heads: Number of heads ``H``; it must divide ``channels`` unless ``divided`` is false.
        divided: Whether every head has ``C / H`` channels.

    Raises:
        TypeError: If a number is not an integer.
        ValueError: If a number is not positive, or ``heads`` does not divide ``channels``.
    """

    adds_loss: ClassVar[bool] = False
    """Whether a forward pass sets ``auxiliary_loss``."""
    channels: int
    """Width ``C`` of input and output."""
    heads: int
    """Number of heads ``H``."""
    edge_dim: int | None = None
    """Width of ``graph.edge_attr``; :obj:`None` if the attention does not read it."""
    auxiliary_loss: Tensor | None = None
    """Term that the last forward pass adds to the loss."""
    _weights: Callable[..., PairWeights] | None = None
    """Method that gives the pairs and weights of checked inputs; pairs of other rows may be among them."""

    def __init__(self, channels: int, heads: int = 1, divided: bool = True) -> None:
        super().__init__()
        if divided:
            self.channels, self.heads = check_heads(channels, heads)
        else:
            self.channels, self.heads = check_integer("channels", channels, 1), check_integer("heads", heads, 1)
        self.probe = EdgeProbe()

    @property
    def accepts_tokens(self) -> bool:
        """Whether the attention is right if graphs have tokens, which their tables do not number."""
        return not self.requires

    @overload
    def __call__(
        self, x: Tensor, batch: Tensor | None = None, graph: Data | Batch | None = None, *, carry: Any, **settings: Any
    ) -> tuple[Tensor, Any]: ...

    @overload
    def __call__(
        self,
        x: Tensor,
        batch: Tensor | None = None,
        graph: Data | Batch | None = None,
        *,
        return_attention_weights: Literal[True],
        rows: Rows = None,
        **settings: Any,
    ) -> tuple[Tensor, PairWeights]: ...

    @overload
    def __call__(
        self, x: Tensor, batch: Tensor | None = None, graph: Data | Batch | None = None, **settings: Any
    ) -> Tensor: ...

    @ending_explanations
    def __call__(
        self,
        x: Tensor,
        batch: Tensor | None = None,
        graph: Data | Batch | None = None,
        *,
        plan: Plan | None = None,
        return_attention_weights: bool = False,
        rows: Rows = None,
        **settings: Any,
    ) -> Any:
        """Call `forward`, and let PyG's explainers see the edges; with weights, return ``(out, (pairs, weights))``.

        For dense and nested nodes, ``pairs`` and ``rows`` number the flat nodes, as ``graph`` does: the True places of
        the mask in row order, without padding.

        Args:
            x, batch, graph, settings: Arguments of `forward`.
            plan: What `plan` has found of the batch and the graph. Of ``graph``, only the attributes `moving` are read
                then.
            return_attention_weights: Whether to return the weights of `attention_weights`, too. The output stays the
                same, bit for bit.
            rows: Nodes whose weights are returned; all if :obj:`None`.
        """
        if plan is not None:
            with plans.read(plan):
                own = {} if graph is None else {key: graph[key] for key in self.moving if graph.get(key) is not None}
                seen = PlannedGraph({**plan.given, **own}, x.size(0))
                more = {"return_attention_weights": True, "rows": rows} if return_attention_weights else {}
                return self(x, plan.batch, seen, **more, **settings)
        if isinstance(x, Tensor) and (x.dim() == 3 or x.is_nested):
            settings |= {"return_attention_weights": return_attention_weights, "rows": rows}
            return self._attend_dense(x, batch, graph, **settings)
        graph = self.probe.masked(graph)
        out = super().__call__(x, batch, graph, **settings)
        if not (return_attention_weights or self.probe.is_watched):
            return out
        with plans.unplanned():
            found = self.attention_weights(x, batch, graph, rows, **settings)
        if self.probe.is_watched:
            self.probe.show(graph, *found)
        return (out, found) if return_attention_weights else out

    @torch.inference_mode(False)
    def plan(
        self,
        graph: Data | None = None,
        batch: Tensor | None = None,
        num_nodes: int | None = None,
        like: Plan | None = None,
    ) -> Plan:
        """What the attention has to know of a batch, for ``attn(x, plan=plan)``; see :class:`~pyg_topomask.Plan`.

        Args:
            graph: The ``Data`` or ``Batch`` with the attributes ``requires``. The plan lies on its device, which
                need not be that of the attention.
            batch: Graph of each node, sorted, shape ``[N]``; ``graph.batch`` or one graph if :obj:`None`.
            num_nodes: ``N``, if neither ``graph`` nor ``batch`` is given.
            like: An earlier plan, whose engines the plan takes, so that compiled code serves both.

        Raises:
            TypeError, ValueError: As in `forward`; also if an attribute of the graph requires a gradient.
        """
        check_homogeneous(graph)
        if graph is None and batch is None and num_nodes is None:
            raise ValueError("a plan needs 'graph', 'batch' or 'num_nodes' (all are None)")
        if batch is None:
            batch = batch_of(Data(num_nodes=num_nodes) if graph is None else graph, *self.parameters())
        nodes = for_plan(with_attributes(Data() if graph is None else graph, batch=batch, num_nodes=batch.numel()))
        batch, graph = nodes["batch"], None if graph is None else nodes
        plan = Plan(of_graph(graph, batch, self.requires, self.moving))
        dtype = next(self.parameters(), torch.empty(0)).dtype
        with plans.made(plan, like), as_learned(self, batch.device):
            x = torch.zeros(batch.numel(), self.channels, dtype=dtype, device=batch.device)
            self.forward(x, batch, graph)
        return plan

    @property
    def moving(self) -> tuple[str, ...]:
        """Attributes of the graph that may have a gradient, so that they are not a part of plans."""
        return () if self.edge_dim is None else ("edge_attr",)

    def _attend_dense(
        self, x: Tensor, batch: Tensor | None = None, graph: Data | None = None, mask: Tensor | None = None, **more: Any
    ) -> Any:
        """Attend to nodes in PyG's dense form or a nested tensor; the second argument is their mask."""
        nodes, batch, restore = flat_nodes(x, batch if mask is None else mask)
        check_same_batch(batch, graph)
        return _with_first(restore, self(nodes, batch, graph, **more))

    def forward(self, x: Tensor, batch: Tensor | None = None, graph: Data | None = None) -> Any:
        """Attend, ``[N, C] → [N, C]``.

        Args:
            x: Node features, shape ``[N, C]``, in the dtype of the parameters, which the output shares.
            batch: Graph of each node, sorted, shape ``[N]``; ``graph.batch`` or one graph if :obj:`None`.
            graph: The ``Data`` or ``Batch`` with the attributes ``requires``.

        Raises:
            TypeError: If ``x`` is not a floating-point tensor, or has another dtype than the parameters, ``batch`` does
                not hold integers, or ``graph`` is not a homogeneous graph.
            ValueError: If a shape is wrong, a feature is not finite (checked on CPU), ``batch`` is not sorted, or the
                graph lacks a required attribute.
        """
        raise NotImplementedError

    def attention_weights(
        self, x: Tensor, batch: Tensor | None = None, graph: Data | None = None, rows: Rows = None, **carry: Any
    ) -> PairWeights:
        """The normalised weights by which values are multiplied, before dropout.

        Args:
            x, batch, graph: The input of a call: nodes ``[N, C]``, the graph of each, and the ``Data`` or ``Batch``.
            carry: The carry of the layer before, as ``carry=``, of attentions that have one.
            rows: Numbers of the nodes whose weights are returned; all if :obj:`None`.

        Returns:
            Pairs of nodes ``(i, j)``, where ``i`` attends to ``j``, int64, shape ``[2, P]``, sorted, each once; and
            their weights, shape ``[P, H]``, float32 or float64. Pairs are those that the mask or the pattern has, or
            else all pairs of each graph. If heads have different pairs, the others' weights are zero.

        Raises:
            NotImplementedError: If the attention forms no weights of pairs.
            TypeError, ValueError: As in `forward`; also if ``rows`` are no nodes.
        """
        batch = check_input(x, self.channels, batch, graph)
        numbers = None if rows is None else torch.as_tensor(rows, dtype=torch.int64).unique().tolist()
        if numbers and not 0 <= numbers[0] <= numbers[-1] < x.size(0):
            raise ValueError(f"'rows' must be numbers of nodes, from 0 to {x.size(0) - 1} (got {numbers})")
        if self._weights is None:
            raise NotImplementedError(f"{type(self).__name__} forms no weights of pairs of nodes to return")
        pairs, weights = self._weights(x, batch, graph, numbers, **carry)
        return pairs_of_rows(pairs, weights, numbers)

    def _split_heads(self, x: Tensor, parts: int = 3) -> tuple[Tensor, ...]:
        """Split a projection ``[N, parts · C]`` into parts of shape ``[N, H, D]``, such as queries, keys and values."""
        return x.view(x.size(0), parts, self.heads, self.channels // self.heads).unbind(dim=1)

    def __getstate__(self) -> dict[str, Any]:
        # The last loss belongs to an autograd graph, which can neither be copied nor pickled.
        return {**self.__dict__, "auxiliary_loss": None}


def _with_first(change: Callable[[Tensor], Tensor], result: Any) -> Any:
    """A result whose output, the first of it, is changed: ``x``, ``(x, …)`` or ``((x, carry), …)``."""
    return (_with_first(change, result[0]), *result[1:]) if isinstance(result, tuple) else change(result)


def has_carry(part: Module) -> bool:
    """Whether an attention passes state from layer to layer, by the method ``initial_carry(num_graphs)``."""
    return hasattr(part, "initial_carry")


def check_input(x: Tensor, channels: int, batch: Tensor | None, graph: Data | None) -> Tensor | None:
    """Check the inputs of an attention, and return the batch vector to use.

    Args:
        x: Node features, which must have shape ``[N, channels]`` and be finite.
        channels: Width ``C`` of the attention.
        batch: Graph of each node, sorted, shape ``[N]``.
        graph: The ``Data`` or ``Batch`` whose ``batch`` is used if ``batch`` is :obj:`None`.

    Returns:
        Graph of each node, or :obj:`None` for one graph.

    Raises:
        TypeError: If ``x`` is not a floating-point tensor, ``batch`` does not hold integers, or ``graph`` is a
            ``HeteroData``.
        ValueError: If a shape is wrong, a feature is not finite (checked on CPU) or ``batch`` is not sorted.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(f"'x' must be a floating-point tensor (got {getattr(x, 'dtype', type(x).__name__)})")
    if x.dim() != 2 or x.size(1) != channels:
        raise ValueError(f"'x' must have shape [N, {channels}] (got {list(x.shape)})")
    if readable(x) and not bool(x.detach().sum().isfinite()) and not bool(x.isfinite().all()):
        row = int((~x.isfinite()).any(dim=1).nonzero()[0])
        raise NonFiniteError(f"'x' holds NaN or infinity, first at node {row}; are the input features clean?")
    check_homogeneous(graph)
    if batch is None and graph is not None:
        batch = graph.get("batch")
    if batch is not None:
        if not isinstance(batch, Tensor) or batch.dim() == 2:  # a graph or its edges as the second argument
            got = list(batch.shape) if isinstance(batch, Tensor) else type(batch).__name__
            raise ValueError(
                f"'batch' must be the graph of each node, [N] (got {got}); attention is called as "
                "attn(x, batch, graph) or attn(x, graph=graph), and reads edges from the graph"
            )
        check_batch(batch, x.size(0))
    return batch


def check_carry(carry: Any, batch: Tensor | None, *shape: int) -> int:
    """Check the carry that an attention is given, ``[B, *shape]``. Returns the number of its graphs.

    Raises:
        ValueError: If the shape is another one, or the batch has more graphs, where they can be counted: on CUDA and
            while a model is compiled, nothing waits for the numbers in ``batch``.
    """
    needed = 1
    if batch is not None:
        needed = int(batch[-1]) + 1 if readable(batch) and batch.numel() > 0 else 0
    rows = carry.size(0) if isinstance(carry, Tensor) and carry.shape[1:] == shape else -1
    if rows < needed or (batch is None and rows > 1):
        given = list(carry.shape) if isinstance(carry, Tensor) else type(carry).__name__
        raise ValueError(
            f"'carry' must have shape {[needed, *shape]}, with a row for each graph (got {given}); start with "
            "initial_carry(num_graphs)"
        )
    return rows
