"""The part of an attention that PyG's explainers find, and through which they see and mask edges."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeAlias, TypeVar, cast, overload

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Batch, Data
from torch_geometric.explain.algorithm.utils import clear_masks
from torch_geometric.nn import MessagePassing

from pyg_topomask.nn.graph_attributes import EDGE_MASK, with_attributes
from pyg_topomask.typing import Adj

Call = TypeVar("Call", bound=Callable[..., Any])
Graph: TypeAlias = Data | Batch | Mapping[str, Tensor] | None


def ending_explanations(call: Call) -> Call:
    """Let an error in a module's ``__call__`` remove what an explainer of PyG has set, which would stay otherwise."""

    @wraps(call)
    def ending(self: Module, *inputs: Any, **more: Any) -> Any:
        if torch.compiler.is_compiling():
            return call(self, *inputs, **more)
        try:
            return call(self, *inputs, **more)
        except Exception:
            clear_masks(self)
            for part in self.modules():
                hooks = getattr(part, "_message_forward_hooks", {})
                for number in [n for n, hook in hooks.items() if hook.__module__.startswith("torch_geometric.explain")]:
                    del hooks[number]
            raise

    return cast(Call, ending)


class Explained(Module):
    """A module of nodes and edges in which an error ends an explanation."""

    @overload
    def __call__(
        self, x: Tensor, edge_index: Adj, batch: Tensor | None = None, graph: Graph = None, *, carry: Any, **more: Any
    ) -> tuple[Tensor, Any]: ...

    @overload
    def __call__(
        self, x: Tensor, edge_index: Adj, batch: Tensor | None = None, graph: Graph = None, *inputs: Any, **more: Any
    ) -> Tensor: ...

    @ending_explanations
    def __call__(self, *inputs: Any, **more: Any) -> Any:
        """Call `forward`."""
        return super().__call__(*inputs, **more)


class EdgeProbe(MessagePassing):
    """A message passing module without parameters, since PyG's explainers look for those in a model.

    `AttentionExplainer` watches the messages of such modules: `show` passes it the weights of the graph's edges. Other
    explainers give such modules a mask of edges: `masked` passes it on to what reads the edges. As for convolutions,
    ``attn.probe.explain = False`` leaves an attention out of explanations.
    """

    def message(self, alpha: Tensor) -> Tensor:
        """The weights, ``[E, H]``."""
        return alpha

    @property
    def is_watched(self) -> bool:
        """Whether an explainer waits for weights."""
        return len(self._message_forward_hooks) > 0

    @property
    def factor(self) -> Tensor | None:
        """An explainer's mask of the edges, ``[E]``; :obj:`None` if there is none."""
        if not self.explain or self._edge_mask is None:
            return None
        return self._edge_mask.sigmoid() if self._apply_sigmoid else self._edge_mask

    def scaled(self, gate: Any) -> Any:
        """Gates ``[E, 1]`` of the edges, or :obj:`None` for one, times an explainer's mask of the edges."""
        mask = self.factor
        if mask is None:
            return gate
        return mask[:, None] if gate is None else mask[:, None] * gate

    def masked(self, graph: Data | None) -> Data | None:
        """The graph with an explainer's mask of its edges, if there is one."""
        factor = None if graph is None else self.factor
        return graph if factor is None else with_attributes(graph, **{EDGE_MASK: factor})

    def show(self, graph: Data | None, pairs: Tensor, weights: Tensor) -> None:
        """Show an explainer the weight with which the second node of each edge attends to the first.

        Raises:
            ValueError: If the graph or its edges are not known.
        """
        edge_index = None if graph is None else graph.get("edge_index")
        if edge_index is None:
            raise ValueError("AttentionExplainer needs the edges: give the model graph=data with 'edge_index'")
        size = int(max([int(index.max()) + 1 for index in (pairs, edge_index) if index.numel()], default=0))
        wanted, known = edge_index[1] * size + edge_index[0], pairs[0] * size + pairs[1]
        place = torch.searchsorted(known, wanted).clamp(max=max(len(known) - 1, 0))
        found = known[place] == wanted
        self.propagate(edge_index, size=(size, size), alpha=weights[place] * found[:, None])
