"""Models in a folder or on the Hugging Face hub: weights and settings as data, and a card that describes them."""

import json
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Module

from pyg_topomask import transforms
from pyg_topomask.nn import mask
from pyg_topomask.nn.card import Described
from pyg_topomask.transforms.base import GraphTransform

if TYPE_CHECKING:
    from typing_extensions import Self

WEIGHTS = "model.safetensors"
CARD = """---
{{ card_data }}
---

# {{ title }}

`{{ model }}` of `pyg_topomask` {{ version }}, with {{ "{:,}".format(parameters) }} parameters.

```python
from pyg_topomask.nn import {{ kind }}

model = {{ kind }}.from_pretrained("...")  # a folder with these files, or user/name on the hub
out = model(graph.x, graph.edge_index, graph=graph)  # graph: a Data or Batch of PyG
```

{% if requires %}The graph must have {{ requires | join(", ") }}.
{% endif %}{% if transform %}Without `graph`, the model adds them by `{{ transform }}`.
{% endif %}`config.json` has the arguments of the model.
{% if rows %}
| metric | mean of {{ seeds }} | ± |
|---|--:|--:|
{% for name, value in rows -%}
| {{ name }} | {{ "%.5g" | format(value.mean) }} | {{ "%.2g" | format(value.std) }} |
{% endfor -%}
{% endif %}"""


class Shareable(Module):
    """A model that can be saved to a folder or the Hugging Face hub, and loaded from there.

    Needs the extra ``hub``. The files are the weights (safetensors) and the arguments of the constructor (JSON).
    Loading them executes nothing: only masks and transforms of this package, or registered ones, are made by name.
    """

    _settings: dict[str, str | None]
    node_encoder: Any
    edge_encoder: Any

    def __new__(cls, *given: Any, **named: Any) -> "Self":
        model = super().__new__(cls)
        arguments = dict(zip(list(signature(cls.__init__).parameters)[1:], given)) | named
        vars(model)["_settings"] = {name: _text(value) for name, value in arguments.items()}
        return model

    def save_pretrained(self, folder: str | Path, summary: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Save the weights, the settings and a model card to a folder.

        Args:
            folder: The folder, made if it does not exist. A card that is in it stays.
            summary: What the card says of a training run: the content of its ``summary.json``.
            **options: Those of ``save_pretrained`` of :class:`huggingface_hub.PyTorchModelHubMixin`.

        Raises:
            ImportError: If the extra ``hub`` is not installed.
            TypeError: If the model was made with functions or modules; names of both can be saved.
        """
        settings = self._readable_settings()
        return _on_hub(type(self))(self, summary).save_pretrained(folder, config=settings, **options)

    def push_to_hub(self, repo_id: str, summary: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Upload the files of `save_pretrained` as ``user/name``; options and errors as there."""
        settings = self._readable_settings()
        return _on_hub(type(self))(self, summary).push_to_hub(repo_id, config=settings, **options)

    @classmethod
    def from_pretrained(cls, name: str | Path, **options: Any) -> "Self":
        """A saved model, in evaluation mode.

        Args:
            name: A folder of `save_pretrained`, or ``user/name`` on the hub.
            **options: Those of ``from_pretrained`` of :class:`huggingface_hub.PyTorchModelHubMixin`, and arguments of
                the constructor that replace saved ones, such as ``transform``.

        Raises:
            ImportError: If the extra ``hub`` is not installed.
            ValueError: If there is no ``config.json``, or it names another class.
        """
        return _on_hub(cls).from_pretrained(str(name), **options)

    def _readable_settings(self) -> dict[str, Any]:
        refused = [name for name, text in self._settings.items() if text is None]
        if refused:
            raise TypeError(
                f"{type(self).__name__} was made with functions or modules as {', '.join(map(repr, refused))}, which a "
                "file that executes nothing cannot hold. Make it with names, such as conv='gcn', attn='grf', heads=4, "
                "attn_kwargs={'max_length': 3}; or keep torch.save(model.state_dict(), path) and your program"
            )
        settings = {name: json.loads(text or "") for name, text in self._settings.items()}
        widths = {"in_channels": self.node_encoder, "edge_dim": self.edge_encoder}  # those that were -1 are known now
        return settings | {name: part.in_features for name, part in widths.items() if settings.get(name) == -1}


def _on_hub(kind: Any) -> Any:
    """A class of huggingface_hub that holds a model of this class."""
    try:
        from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
        from safetensors.torch import load_model
    except ModuleNotFoundError as error:
        raise ImportError("saved models need huggingface_hub: pip install 'pyg_topomask[hub]'") from error

    class OnHub(
        PyTorchModelHubMixin, library_name="pyg_topomask", tags=["graph-machine-learning"], model_card_template=CARD
    ):
        def __init__(self, module: Any, summary: Mapping[str, Any] | None) -> None:
            self.module, self.summary = module, summary or {}

        def generate_model_card(self, **more: Any) -> Any:
            from pyg_topomask import __version__

            rows = [row for row in self.summary.get("metrics", {}).items() if not row[0].startswith("train_")]
            facts = {"kind": kind.__name__, "model": repr(self.module), "version": __version__, "rows": rows}
            facts |= {
                "parameters": sum(p.numel() for p in self.module.parameters()),
                "transform": self.module.transform,
            }
            facts |= {"title": self.summary.get("name", kind.__name__), "requires": self.module.requires}
            facts |= {"seeds": f"{len(self.summary.get('seeds', ()))} seeds"}
            return super().generate_model_card(**facts, **more)

        @classmethod
        def _from_pretrained(
            cls, *, model_id: str, config: Any = None, map_location: str = "cpu", strict: bool = True, **options: Any
        ) -> Any:
            hub = {key: options.pop(key) for key in signature(super()._from_pretrained).parameters if key in options}
            if not isinstance(config, dict):
                raise ValueError(f"{model_id} has no config.json: is it a folder of save_pretrained, or user/name?")
            with torch.random.fork_rng(devices=[]):  # the initial weights are replaced
                model = kind(**json.loads(json.dumps(config), object_hook=_made) | options)
            path = Path(model_id, WEIGHTS)
            if not Path(model_id).is_dir():
                path = Path(hf_hub_download(repo_id=model_id, filename=WEIGHTS, **hub))
            load_model(model, path, strict=strict, device=map_location)
            return model.eval()

    return OnHub


def _text(value: Any) -> str | None:
    """An argument as JSON, or None if it is not data."""
    try:
        return json.dumps(value, default=_as_json)
    except TypeError:
        return None


def _as_json(value: Any) -> dict[str, Any]:
    if isinstance(value, Described):
        arguments = value._made_with
    elif isinstance(value, GraphTransform):
        arguments = {name: setting for name, setting in vars(value).items() if not name.startswith("_")}
    else:
        raise TypeError(value)
    return {"class": type(value).__name__, "arguments": arguments}


def _made(found: dict[str, Any]) -> Any:
    """A mask or a transform whose class is known; other dictionaries stay as they are."""
    if set(found) != {"class", "arguments"}:
        return found
    known = {kind.__name__: kind for kind in mask.MASK.values()} | {name: getattr(mask, name) for name in mask.__all__}
    known |= {name: getattr(transforms, name) for name in transforms.__all__}
    if not isinstance(known.get(found["class"]), type):
        raise ValueError(f"config.json names {found['class']!r}, which is no mask or transform of this package")
    return known[found["class"]](**found["arguments"])
