"""Scalable, topologically masked attention for graph transformers in PyTorch Geometric.

``nn`` has attentions, masks, and GraphGPS layers and models. ``transforms`` prepares graphs for them. ``operators`` has
masks as linear operators, and ``ops`` functions on tensors. ``datasets`` generates data, and ``loader`` serves large
graphs in parts. ``expressivity``, ``viz`` and ``testing`` have analyses, pictures and test cases. ``run`` trains from
YAML, as the command ``topomask``.

On CPU, results repeat bit for bit for one seed and one number of threads. On CUDA they repeat up to rounding only: sums
over the nodes of a graph (linear attention, pooling, graph norms), over the edges of a node (PyG's convolutions) and
into the blocks of a mask are added atomically, in an order that changes from call to call. So are some gradients of
gathered rows and of sparse products. ``torch.use_deterministic_algorithms(True)`` makes torch add in a fixed order
where it can, and name the operation where it cannot.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pyg_topomask.run.trained_model import TrainedModel

__version__ = "0.1.0"

__all__ = ["load"]


def load(folder: "str | Path") -> "TrainedModel":
    """Load a trained model and the transform that prepares graphs for it, for ``model(transform(data))``.

    .. code-block:: python

        model, transform = pyg_topomask.load("results/grf/enzymes/0")
        logits = model(transform(data))

    The weights are those of the best validation epoch. The transform does what the run did with its graphs: features,
    encodings, and walks or expander edges, drawn as in the run's evaluations. ``data`` must be a graph as the class of
    the run's data set returns it. For MNIST, CIFAR10, MalNetTiny, digits with positions, and OGB's sets without node
    features, the runner adds columns to the features when it loads the data set, and the transform does not.
    ``topomask predict`` loads these data sets as the runner does. ``model`` also takes a batch of prepared graphs,
    ``Batch.from_data_list([transform(data), ...])``. Nothing in the files is executed.

    Args:
        folder: Folder of a seed, or a results folder with a single seed.

    Returns:
        A named tuple ``(model, transform)``. The model is on the CPU, in evaluation mode, and returns logits or values
        ``[n, outputs]``, with n graphs, nodes, or columns of ``edge_label_index``.

    Raises:
        RunError: If there is no run, its files are damaged, or they were written by an older or newer version.
        ImportError: If a package of the extra ``run`` is missing.
    """
    try:
        module = import_module("pyg_topomask.run.trained_model")
    except ModuleNotFoundError as error:
        raise ImportError(f"{error.name} is missing; load needs: pip install 'pyg_topomask[run]'") from error
    return module.load(folder)
