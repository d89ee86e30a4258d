"""The options of the commands."""

from typing import Any

OVERRIDES = "settings that override the file's: key=value, or key value pairs, such as optim.base_lr 0.01"
"""Description of the settings after a config's name."""

WITH_OVERRIDES = ("run", "expressivity", "show", "advise", "precompute")
"""Commands that take settings after their options; `check` reads those between its files itself."""

_SHOW = "draw the attention, mask, reach or walks of a layer, on graphs of a config's data set, or print its engines"

_COMMANDS = {
    "run": "train and test a config",
    "check": "validate configs and build their models, without data",
    "list": "print every name that a config may use, its source, and when to take an attention or a mask",
    "doctor": "print what speed depends on at this machine, and what to set",
    "schema": "print the JSON schema of configs, for editors that complete and check YAML",
    "expressivity": "count the pairs of graphs that features and encodings distinguish",
    "show": _SHOW,
    "advise": "try every attention on a config's data, and print the time and memory that each takes",
    "compare": "print a table of finished runs with paired differences",
    "predict": "write a trained model's predictions as CSV",
    "partition": "divide a large graph into parts with few edges between them",
    "precompute": "draw the random walks of one large graph, in shards that several processes make",
    "report": "write an HTML file about a run, which opens without a network",
}

_KINDS = (
    "attention: weights of pairs of nodes; mask: a mask and one of its rows; reach: how far a mask sees and a model "
    "looks, as a table and, with --out, a picture; walks: the error of a GRF mask by the number of walks, likewise; "
    "path: the engines of masked attention on a batch, with times or reasons"
)
_PICTURE = "picture to write; its suffix gives the format (not for path, not needed for reach and walks)"
_CHECKED = "YAML files, or folders of them; key=value settings are for all configs"
_OWN = "graphs of your own: a file of torch.save, or the folder of an InMemoryDataset"
_DATA = "train, val, test or all: items of the run's data set (default: test); or a file of torch.save with graphs"
_ENCODING = "random-walk return probabilities (default), Laplacian eigenvectors, or none"
_EDGES = "folder of a graph on disk, or a file of edges (.npy, or text with two columns)"
_WEIGHTS = "best.ckpt of a run, or its folder (default: an untrained model)"

_ENGINES: dict[str, Any] = {"choices": ("processes", "ray"), "default": "processes"}
_METHODS: dict[str, Any] = {"choices": ("auto", "metis", "stream"), "default": "auto"}
_MANY: dict[str, Any] = {"nargs": "+"}
_NUMBER: dict[str, Any] = {"type": int}
_PLACE: dict[str, Any] = {"type": int, "default": 0}
_NEEDED: dict[str, Any] = {"type": int, "required": True}

# Commands; a flag, or the name of an argument, with what stands for its value in the help; its description; more for
# argparse.
_OPTIONS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("show", "kind KIND", _KINDS, {"choices": ("attention", "mask", "reach", "walks", "path")}),
    ("run expressivity show precompute", "config CONFIG", "YAML file", {}),
    ("run", "--repeat N", "number of seeds, counting up from 'seed'", {"type": int, "default": 1}),
    ("run", "--out DIR", "folder of the results (default: the config's out_dir)", {}),
    ("run", "--data PATH", _OWN, {}),
    ("check", "configs CONFIG", _CHECKED, _MANY),
    ("list", "kind KIND", "attentions, convolutions, ..., keys (default: all but keys)", {"nargs": "?"}),
    ("expressivity", "--encoding", _ENCODING, {"choices": ("none", "rwse", "lappe"), "default": "rwse"}),
    ("expressivity", "--size K", "number of steps or vectors (default: 8)", {"type": int, "default": 8}),
    ("expressivity", "--limit N", "only the first N graphs (default: all)", _NUMBER),
    ("expressivity", "--rounds R", "rounds of refinement, one per layer (default: all)", _NUMBER),
    ("show", "--out FILE", _PICTURE, {}),
    ("show", "--graph I", "graph of the data set, counted from 0 (default: 0)", _PLACE),
    ("show", "--layer L", "layer, counted from 0 (default: 0)", _PLACE),
    ("show", "--head H", "head, counted from 0 (default: 0); not for reach and path", _NUMBER),
    ("show", "--node V", "draw the row of this node; only for attention and mask", _NUMBER),
    ("show", "--checkpoint PATH", _WEIGHTS, {}),
    ("advise", "source DATASET|CONFIG", "name of a data set, such as ENZYMES, or a YAML file", {}),
    ("advise", "--attention NAME", "try only this one; may be repeated", {"action": "append", "default": []}),
    ("advise", "--seconds S", "time for the trial of an attention (default: 3)", {"type": float, "default": 3.0}),
    ("compare", "runs RUN", "results folder, or folder of a seed", _MANY),
    ("compare", "--baseline RUN", "the run that the others are compared with (default: the first)", {}),
    ("predict report", "run RUN", "folder of a seed, or results folder with a single seed", {}),
    ("predict", "--data DATA", _DATA, {"default": "test"}),
    ("predict", "--out FILE", "CSV file to write (default: standard output)", {}),
    ("partition", "source SOURCE", _EDGES, {}),
    ("partition", "--parts P", "number of parts", _NEEDED),
    ("partition", "--out DIR", "new folder of the graph with the part of each node, 'part'", {"required": True}),
    ("precompute", "--shards S", "number of files, each with the walks of some start nodes", _NEEDED),
    ("precompute", "--out DIR", "folder of the shards; complete ones are kept (default: walks)", {"default": "walks"}),
    ("precompute", "--engine", "default: processes, on this machine", _ENGINES),
    ("precompute", "--workers W", "number of processes (default: one for each processor)", _NUMBER),
    ("partition", "--method", "default: METIS where pymetis is installed", _METHODS),
    ("report", "--out FILE", "default: report.html", {"default": "report.html"}),
]

COMMANDS = {name: (text, [row[1:] for row in _OPTIONS if name in row[0].split()]) for name, text in _COMMANDS.items()}
"""The help of each command, and its options."""
