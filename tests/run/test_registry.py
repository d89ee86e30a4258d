"""An attention and a mask defined outside of the package, used in configs and commands."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from pyg_topomask.nn import ATTENTION, Attention, GRFMask, Mask, MaskedAttention, register_attention, register_mask
from pyg_topomask.nn.attention.base import check_input
from pyg_topomask.operators import DenseOperator
from pyg_topomask.run.cli import main
from pyg_topomask.run.commands.list import NAMES, names
from pyg_topomask.run.errors import ConfigError
from pyg_topomask.run.graphgps.attentions import build_attention
from pyg_topomask.run.graphgps.check import check_config
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.graphgps.config.schema import all_keys

PLAIN = {"dataset": {"format": "PyG-MotifDataset", "name": "circle"}}

MODULE = Path(__file__).parents[2] / "examples" / "own_module.py"


@pytest.fixture
def folder(tiny, tmp_path, monkeypatch):
    """A current folder that contains the module and two configs that use it."""
    (tmp_path / "mine.py").write_bytes(MODULE.read_bytes())
    masks = {
        "mean": ("GIN+OwnMean", {}),
        "decay": ("GIN+Masked", {"mask": "own_decay", "mask_own_decay": {"decay": 0.25}}),
    }
    for name, (layer_type, topomask) in masks.items():
        config = tiny | {"gt": tiny["gt"] | {"layer_type": layer_type}, "topomask": topomask}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.mark.slow
def test_a_module_of_the_current_folder_is_imported_first(folder):
    """Run in a new process, so that the schema is built after the import; what only training needs is not imported."""
    code = """
import sys
from pyg_topomask.run.cli import main
assert main(["--import", "mine", "check", "mean.yaml", "decay.yaml"]) == 0
assert not {"lightning", "matplotlib", "torchmetrics"} & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_both_are_listed_and_trained(folder, registries, capsys):
    assert main(["--import", "mine", "list"]) == 0
    listed = capsys.readouterr().out
    assert "mine.MeanAttention" in listed
    assert "mine.DecayMask" in listed
    for name in ("mean", "decay"):
        assert main(["--import", "mine", "run", f"{name}.yaml", "--out", "out", "optim.max_epoch=1"]) == 0
        assert (folder / "out" / name / "summary.json").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["gt.layer_type=GIN+OwnMean", "topomask={}"], "gt.layer_type: no attention is called 'OwnMean'"),
        (["topomask={mask: own_decay}", "gt.layer_type=GIN+Linear"], "topomask.mask: no mask is called 'own_decay'"),
        (["topomask.mask_own_decay.decay=0.5"], "no mask has the settings topomask.mask_own_decay"),
    ],
)
def test_a_trained_model_is_not_built_without_its_module(folder, registries, capsys, settings, message):
    config = yaml.safe_load((folder / "decay.yaml").read_text())
    config["topomask"].pop("mask_own_decay")
    (folder / "own.yaml").write_text(yaml.safe_dump(config))
    assert main(["--import", "mine", "run", "own.yaml", "--out", "out", *settings, "optim.max_epoch=1"]) == 0
    registries()
    capsys.readouterr()
    assert main(["predict", "out/own/0"]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "import the module that registers it first: topomask --import MODULE" in error


def test_modules_that_cannot_be_imported(folder, capsys):
    (folder / "broken.py").write_text("from pyg_topomask.nn import Nothing\n")
    (folder / "hostile.py").write_text("x = 1\ny = x / 0\n")
    (folder / "ends.py").write_text("raise SystemExit\n")
    for name, *reasons in (
        ("yours", "error: --import must name a module that can be imported (got 'yours'):", "No module named 'yours'"),
        ("broken", "ImportError: cannot import name 'Nothing' from 'pyg_topomask.nn'"),
        ("hostile", 'hostile.py", line 2', "ZeroDivisionError: division by zero\n"),
        ("ends", 'ends.py", line 1', "SystemExit"),
    ):
        assert main(["--import", name, "list"]) == 1
        error = capsys.readouterr().err
        assert all(reason in error for reason in reasons)


def test_names_are_listed_without_torch_as_they_are(registries):
    command = "python -m pyg_topomask --import torch list > pyg_topomask/run/commands/names.txt"
    assert names() == NAMES.read_text(encoding="utf-8"), f"if that is meant: {command}"
    code = "import sys; from pyg_topomask.run.cli import main; main(['list']); assert 'torch' not in sys.modules"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == names()


class Shifted(Attention):
    """Without a card, which only the package's own classes must have."""

    config_keys = {"mask": "topomask.mask", "shift": "topomask.alpha"}  # noqa: RUF012

    def __init__(self, channels, heads=1, mask=None, shift=0.0):
        super().__init__(channels, heads)
        self.mask, self.shift = mask, shift

    def forward(self, x, batch=None, graph=None):
        check_input(x, self.channels, batch, graph)
        return self.mask(graph) @ x + self.shift


class ConstantMask(Mask):
    """Mask with the same weight for all pairs.

    Args:
        weight: The weight of :math:`j` for :math:`i`,
            of all pairs.
        pattern: Nothing that YAML can say.
    """

    def __init__(self, weight: float, pattern: torch.Tensor | None = None) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, graph):
        return DenseOperator(torch.full((graph.num_nodes, graph.num_nodes), self.weight))


def test_names_registered_after_the_schema_was_read(registries):
    register_attention("Shifted", Shifted)
    register_mask("constant", ConstantMask)
    mine = ["gt.layer_type=GCN+Shifted", "topomask.mask=constant", "topomask.mask_constant.weight=2"]
    config = load(PLAIN, [*mine, "topomask.alpha=3"]).config
    assert "topomask.mask_constant.weight" in all_keys()
    assert "topomask.mask_constant.pattern" not in all_keys()
    section = type(config.topomask.mask_constant)
    assert section.model_fields["weight"].description == "The weight of j for i, of all pairs."
    attn = build_attention(config, "Shifted")
    assert (type(attn), attn.shift, type(attn.mask), attn.mask.weight) == (Shifted, 3.0, ConstantMask, 2.0)
    with pytest.raises(
        ConfigError, match=r"mask constant needs 'weight'; set topomask\.mask_constant\.weight: The weight"
    ):
        check_config(PLAIN, mine[:2])


@pytest.mark.slow
def test_a_config_with_settings_of_a_mask_is_pickled():
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).topomask.mask_heat.tol)"
    content = pickle.dumps(load(PLAIN, ["topomask.mask_heat.tol=0.25"]).config)
    done = subprocess.run([sys.executable, "-c", code], input=content, capture_output=True, check=False)
    assert done.stdout.decode().strip() == "0.25", done.stderr.decode()


@pytest.mark.parametrize(
    ("register", "name", "cls", "error", "message"),
    [
        (register_attention, "Mine", torch.nn.Linear, TypeError, "'Mine' must be a class derived from Attention"),
        (register_attention, "Mine", MaskedAttention(4), TypeError, "'Mine' must be a class derived from Attention"),
        (register_mask, "mine", Shifted, TypeError, "'mine' must be a class derived from Mask"),
        (register_attention, "GRF", Shifted, ValueError, "'GRF' is pyg_topomask.nn.attention.grf.GRFAttention already"),
        (register_mask, "grf", ConstantMask, ValueError, "'grf' is pyg_topomask.nn.mask.grf.GRFMask already"),
        (register_attention, "A+B", Shifted, ValueError, r"letters, digits and underscores .* \(got 'A\+B'\)"),
        (register_mask, "none", ConstantMask, ValueError, "is not 'none'"),
    ],
)
def test_what_cannot_be_registered(registries, register, name, cls, error, message):
    with pytest.raises(error, match=message):
        register(name, cls)


def test_a_reloaded_module_registers_again(registries):
    register_mask("grf", GRFMask)
    register_attention("Shifted", Shifted)
    again = type("Shifted", (Shifted,), {**vars(Shifted)})
    register_attention("Shifted", again)
    assert ATTENTION["Shifted"] is again


def test_a_name_with_another_meaning_in_configs_is_refused(registries):
    register_attention("Full", Shifted)
    with pytest.raises(ConfigError, match="'Full' has another meaning here: register the attention under another name"):
        check_config(PLAIN, ["gt.layer_type=GCN+Full"])
