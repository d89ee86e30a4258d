"""The comparison on molecules: rows differ only in their attention, and a trial writes the table with its curves."""

import importlib

import pytest

from pyg_topomask.run import check_config
from tests.scripts.test_tu_folds import assert_differ_only_in_layers

pytest.importorskip("matplotlib")


def config_of(script, dataset, method):
    path = script.CONFIGS / "primphormer" / f"{dataset}.yaml"
    return check_config(path, script.settings_of(dataset, method, 2, 25))[0].config


@pytest.mark.parametrize("dataset", ["ogbg-molhiv", "peptides-func"])
def test_rows_differ_only_in_their_attention(script, dataset):
    found = {method: config_of(script, dataset, method) for method in script.METHODS}
    first = found["no attention"]
    assert (first.seed, first.optim.max_epoch, first.gt.layer_type) == (2, 25, "CustomGatedGCN+None")
    layers = {(config.gt.layer_type, str(config.topomask.mask)) for config in found.values()}
    assert len(layers) == len(found)
    assert_differ_only_in_layers(found, first)


def test_a_shortened_schedule_has_the_same_share_of_warm_up(script):
    path = script.CONFIGS / "primphormer" / "ogbg-molhiv.yaml"  # 5 of 100 epochs
    warmup_of = importlib.import_module("_tables").warmup_of
    assert [warmup_of(path, epochs) for epochs in (1, 9, 10, 29, 100)] == [0, 0, 1, 1, 5]
