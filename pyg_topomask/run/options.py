"""The options of the commands."""

from __future__ import annotations

from typing import Any

OVERRIDES = "settings that override the file's: key=value, or key value pairs, such as optim.base_lr 0.01"
"""Description of the settings after a config's name."""

WITH_OVERRIDES = ("run", "expressivity", "show", "advise", "precompute")
"""Commands that take settings after their options; `check` reads those between its files itself."""

Option = tuple[str, str, dict[str, Any]]
"""A flag, or the name of an argument, with what stands for its value in the help; its description; more
for argparse."""

_NUMBER: dict[str, Any] = {"type": int, "default": 0}
_POSITION: list[Option] = [
    ("--graph I", "graph of the data set, counted from 0 (default: 0)", _NUMBER),
    ("--layer L", "layer, counted from 0 (default: 0)", _NUMBER),
    ("--head H", "head, counted from 0 (default: 0)", _NUMBER),
    ("--node V", "draw the row of this node", {"type": int}),
]
_RUN: Option = ("run RUN", "folder of a seed, or results folder with a single seed", {})
_KINDS = (
    "attention: weights of pairs of nodes; mask: a mask and one of its rows; reach: how far a mask sees and a model "
    "looks, as a table and, with --out, a picture; walks: the error of a GRF mask by the number of walks, likewise; "
    "path: the engines of masked attention on a batch, with times or reasons"
)
_DATA = "train, val, test or all: items of the run's data set (default: test); or a file of torch.save with graphs"
_SHOW = "draw the attention, mask, reach or walks of a layer, on graphs of a config's data set, or print its engines"

_ENCODING = "random-walk return probabilities (default), Laplacian eigenvectors, or none"
_ROUNDS = "rounds of refinement, one per layer (default: all)"

COMMANDS: dict[str, tuple[str, list[Option]]] = {
    "run": (
        "train and test a config",
        [
            ("config CONFIG", "YAML file", {}),
            ("--repeat N", "number of seeds, counting up from 'seed'", {"type": int, "default": 1}),
            ("--out DIR", "folder of the results (default: the config's out_dir)", {}),
            ("--data PATH", "graphs of your own: a file of torch.save, or the folder of an InMemoryDataset", {}),
        ],
    ),
    "check": (
        "validate configs and build their models, without data",
        [("configs CONFIG", "YAML files, or folders of them; key=value settings are for all configs", {"nargs": "+"})],
    ),
    "list": (
        "print every name that a config may use, and its source",
        [("kind KIND", "attentions, convolutions, ..., keys (default: all but keys)", {"nargs": "?"})],
    ),
    "doctor": ("print what speed depends on at this machine, and what to set", []),
    "schema": ("print the JSON schema of configs, for editors that complete and check YAML", []),
    "expressivity": (
        "count the pairs of graphs that features and encodings distinguish",
        [
            ("config CONFIG", "YAML file", {}),
            ("--encoding", _ENCODING, {"choices": ("none", "rwse", "lappe"), "default": "rwse"}),
            ("--size K", "number of steps or vectors (default: 8)", {"type": int, "default": 8}),
            ("--limit N", "only the first N graphs (default: all)", {"type": int}),
            ("--rounds R", _ROUNDS, {"type": int}),
        ],
    ),
    "show": (
        _SHOW,
        [
            ("kind KIND", _KINDS, {"choices": ("attention", "mask", "reach", "walks", "path")}),
            ("config CONFIG", "YAML file", {}),
            (
                "--out FILE",
                "picture to write; its suffix gives the format (not for path, not needed for reach and walks)",
                {},
            ),
            *_POSITION,
            ("--checkpoint PATH", "best.ckpt of a run, or its folder (default: an untrained model)", {}),
        ],
    ),
    "advise": (
        "try every attention on a config's data, and print the time and memory that each takes",
        [
            ("source DATASET|CONFIG", "name of a data set, such as ENZYMES, or a YAML file", {}),
            ("--attention NAME", "try only this one; may be repeated", {"action": "append", "default": []}),
            ("--seconds S", "time for the trial of an attention (default: 3)", {"type": float, "default": 3.0}),
        ],
    ),
    "compare": (
        "print a table of finished runs with paired differences",
        [
            ("runs RUN", "results folder, or folder of a seed", {"nargs": "+"}),
            ("--baseline RUN", "the run that the others are compared with (default: the first)", {}),
        ],
    ),
    "predict": (
        "write a trained model's predictions as CSV",
        [
            _RUN,
            ("--data DATA", _DATA, {"default": "test"}),
            ("--out FILE", "CSV file to write (default: standard output)", {}),
        ],
    ),
    "partition": (
        "divide a large graph into parts with few edges between them",
        [
            ("source SOURCE", "folder of a graph on disk, or a file of edges (.npy, or text with two columns)", {}),
            ("--parts P", "number of parts", {"type": int, "required": True}),
            ("--out DIR", "new folder of the graph with the part of each node, 'part'", {"required": True}),
            (
                "--method",
                "default: METIS where pymetis is installed",
                {"choices": ("auto", "metis", "stream"), "default": "auto"},
            ),
        ],
    ),
    "precompute": (
        "draw the random walks of one large graph, in shards that several processes make",
        [
            ("config CONFIG", "YAML file", {}),
            ("--shards S", "number of files, each with the walks of some start nodes", {"type": int, "required": True}),
            ("--out DIR", "folder of the shards; complete ones are kept (default: walks)", {"default": "walks"}),
            (
                "--engine",
                "default: processes, on this machine",
                {"choices": ("processes", "ray"), "default": "processes"},
            ),
            ("--workers W", "number of processes (default: one for each processor)", {"type": int}),
        ],
    ),
    "report": (
        "write an HTML file about a run, which opens without a network",
        [_RUN, ("--out FILE", "default: report.html", {"default": "report.html"})],
    ),
}
