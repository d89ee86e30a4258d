"""Every attention and mask has a config in the repository; a run of it trains, and the picture of a mask shows it."""

from pathlib import Path

import matplotlib
import numpy as np
import pytest
import yaml

from pyg_topomask.nn import ATTENTION, MASK
from pyg_topomask.run.commands.show import picture
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.graphgps.reading import run_config

CONFIGS = Path(__file__).parents[2] / "configs"
ATTENTIONS, MASKS = sorted(CONFIGS.rglob("enzymes.yaml")), sorted((CONFIGS / "masked").glob("*-*.yaml"))
MOTIFS = {"format": "PyG-MotifDataset", "name": "circle", "num_graphs": 24, "num_nodes": 12}
CYCLES = {"format": "PyG-InducedCycleDataset", "name": "none", "num_graphs": 24, "num_nodes": 12}
DIGITS = {"format": "PyG-DigitsDataset", "name": "plain", "split": [24, 12, 12]}
SMALL = ["gt.layers=1", "optim.max_epoch=1", "optim.num_warmup_epochs=0", "train.batch_size=8"]


def test_every_attention_and_mask_has_a_config():
    assert {name for path in ATTENTIONS for name in load(path).config.gt.attentions} == set(ATTENTION)
    named = {name for path in MASKS for name in load(path).config.topomask.masks} - {"none"}
    assert named | {"grf", "rwgnk"} == set(MASK)  # these are in the configs of GRF and GKAT


def test_exphormers_own_settings_drop_no_weights_and_do_not_normalise_the_encoder():
    configs = {path.stem: load(path).config for path in (CONFIGS / "exphormer").glob("*.yaml")}
    own = {name: config for name, config in configs.items() if config.model.type == "MultiModel"}
    assert len(own) == 11
    assert {config.gt.attn_dropout for config in own.values()} == {0}
    normalised = {name for name, config in own.items() if config.dataset.node_encoder_bn is not False}
    assert normalised == {"malnet-tiny", "ogbn-arxiv"}  # the second has no encoder


@pytest.mark.slow
@pytest.mark.parametrize("path", [*ATTENTIONS, *MASKS], ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_run_of_it_on_small_graphs_and_the_picture_of_its_mask(path, tmp_path):
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    values.pop("posenc_RWSE", None)
    family = path.stem.partition("-")[0]
    if family == "digits":
        pytest.importorskip("sklearn")
    with_edges = MOTIFS | {"edge_encoder": True}
    values["dataset"] = {"enzymes": MOTIFS, "peptides": with_edges, "induced": CYCLES, "digits": DIGITS}[family]
    values["metric_best"] = "accuracy"
    small = tmp_path / path.name
    small.write_text(yaml.safe_dump(values))
    overrides = SMALL if path in ATTENTIONS else [*SMALL, "gt.dim_hidden=16"]
    summary = run_config(small, tmp_path / "out", overrides=overrides)
    assert 0 <= summary["metrics"]["test_accuracy"]["mean"] <= 1
    if path in ATTENTIONS:
        return
    trained = tmp_path / "out" / path.stem / "0"
    figure = picture("mask", small, graph=3, head=1, node=2, checkpoint=trained, overrides=overrides)
    matrix = figure.axes[0].images[0].get_array()
    matplotlib.pyplot.close(figure)
    assert "trained for 1 epochs" in figure.axes[0].get_title()
    assert (matrix.diagonal() > 0).all()
    if values["topomask"]["mask"] == "causal":
        assert np.array_equal(matrix, np.tri(64))
    elif values["topomask"]["mask"] not in ("toeplitz", "low_rank"):  # these learn directions
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-4)
