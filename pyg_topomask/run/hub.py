"""Trained models on the Hugging Face hub, through the mixin of PyG."""

from __future__ import annotations

from pathlib import Path
from shutil import copyfile
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data
from torch_geometric.nn.model_hub import PyGModelHubMixin
from torch_geometric.transforms import BaseTransform

from pyg_topomask import __version__
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.model.attentions import layers_text, mask_of
from pyg_topomask.run.trained_model import OpenedRun, open_run
from pyg_topomask.run.training.checkpoint import BEST

try:
    from huggingface_hub import ModelCard, ModelCardData, hf_hub_download
except ModuleNotFoundError as error:
    raise ImportError("huggingface_hub is missing; models on the hub need: pip install 'pyg_topomask[hub]'") from error

__all__ = ["PretrainedModel"]

FILES = ("config.yaml", BEST)
"""Files of a run that a model and its transform are built from."""

_CARD = """---
{{ card_data }}
---

# {{ layers }} on {{ dataset }}

A trained model with layers `{{ layers }}`, saved by `pyg_topomask` {{ version }}. `config.yaml` has all settings, and
`best.ckpt` the weights of the epoch with the best validation metric.

```python
from pyg_topomask.run.hub import PretrainedModel

model = PretrainedModel.from_pretrained("...")  # this folder, or user/model if these files are on the hub
logits = model(model.transform(data))  # data: a graph as the data set gives it
```
"""


class PretrainedModel(Module, PyGModelHubMixin):
    """A trained model that can be saved to a folder or the hub, and loaded from there.

    .. code-block:: python

        model = PretrainedModel.from_run("results/grf/enzymes/0")
        model.save_pretrained("enzymes", push_to_hub=True, repo_id="me/enzymes")

        model = PretrainedModel.from_pretrained("me/enzymes")  # or a folder
        logits = model(model.transform(data))

    The files are those of the run: its config and its best checkpoint. Nothing in them is executed.

    Args:
        run: An opened run; use `from_run` or `from_pretrained`.
    """

    transform: BaseTransform
    """Prepares a graph as the run did; see :func:`pyg_topomask.load`."""

    def __init__(self, run: OpenedRun) -> None:
        Module.__init__(self)
        layers = layers_text(run.config.gt.layer_type, mask_of(run.config))
        dataset = f"{run.config.dataset.format} {run.config.dataset.name}"
        PyGModelHubMixin.__init__(self, layers, dataset, {"layer_type": run.config.gt.layer_type, "dataset": dataset})
        self.folder, self.model, self.transform = run.folder, run.model, run.transform
        self.eval()

    @classmethod
    def from_run(cls, folder: str | Path) -> PretrainedModel:
        """The model of the best epoch of a run.

        Args:
            folder: Folder of a seed, or a results folder with a single seed.

        Raises:
            RunError: If there is no run, or its files are damaged or of another version.
        """
        return cls(open_run(folder))

    def forward(self, graph: Data) -> Tensor:
        """Logits or values of a prepared graph or batch; see :func:`pyg_topomask.load`."""
        return self.model(graph)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str, **options: Any) -> PretrainedModel:
        """Load a model from a folder, or from the hub by ``user/model``; options are those of PyG's mixin.

        Raises:
            RunError: If there is no such folder and the name is not ``user/model``, or the files cannot be read.
        """
        name = str(pretrained_model_name_or_path)
        if not Path(name).is_dir() and name.count("/") != 1:
            raise RunError(f"there is no folder {name}; a model on the hub is named user/model")
        return super().from_pretrained(name, **options)

    def generate_model_card(self, *arguments: Any, **options: Any) -> ModelCard:
        """The card that is saved with the model; options are those of `huggingface_hub`."""
        known = {"layers": self.model_name, "dataset": self.dataset_name, "version": __version__}
        data = ModelCardData(library_name="pytorch_geometric", tags=["graph-machine-learning"])
        return ModelCard.from_template(data, template_str=_CARD, **known | options)

    def construct_model_card(self, model_name: str, dataset_name: str) -> ModelCard:
        """The card that PyG's mixin pushes to the hub: the same."""
        return self.generate_model_card()

    def _save_pretrained(self, save_directory: Path | str) -> None:
        for name in FILES:
            copyfile(self.folder / name, Path(save_directory) / name)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> PretrainedModel:
        if Path(model_id).is_dir():
            return cls.from_run(model_id)
        known = ("revision", "cache_dir", "force_download", "token", "local_files_only")
        options = {name: value for name, value in options.items() if name in known}
        paths = [Path(hf_hub_download(repo_id=model_id, filename=name, **options)) for name in FILES]
        return cls.from_run(paths[0].parent)
