"""Redrawn walks: uniform walks, and walks that follow the attention."""

import pytest
import torch

from pyg_topomask.run import run_config
from pyg_topomask.run.graphgps.attentions import TRANSITION
from pyg_topomask.run.training.lightning_module import GraphModule
from tests.run.test_resume import interrupted

UNIFORM = ["topomask.redraw=2"]
FOLLOWING = ["topomask.redraw=2", "topomask.transition=attention", "gt.layer_type=GCN+GKAT", "topomask.num_walks=8"]


@pytest.fixture
def short(tiny):
    tiny["optim"] |= {"max_epoch": 5}
    tiny["dataset"] |= {"num_graphs": 30}
    return tiny


def walks_by_epoch(monkeypatch):
    """A list to which every later run adds the walks of each training epoch, sorted by graph."""
    seen, training, validation = {}, GraphModule.training_step, GraphModule.validation_step

    def keep(epoch, batch):
        graphs = {tuple(graph.edge_index.flatten().tolist()): graph for graph in batch.to_data_list()}
        found = {key: (graph.walk_index.tolist(), graph.walk_count.tolist()) for key, graph in graphs.items()}
        seen.setdefault(epoch, {}).update(found)

    def train(self, batch, index):
        keep(self.current_epoch, batch)
        return training(self, batch, index)

    def validate(self, batch, index):
        keep(f"validation {self.current_epoch}", batch)
        return validation(self, batch, index)

    monkeypatch.setattr(GraphModule, "training_step", train)
    monkeypatch.setattr(GraphModule, "validation_step", validate)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [UNIFORM, FOLLOWING], ids=["uniform", "following"])
def test_walks_change_every_so_many_epochs_by_seed_and_epoch_and_a_resumed_run_has_them(
    short, tmp_path, monkeypatch, overrides
):
    short["train"]["ckpt_period"] = 4  # the fourth epoch has the walks of the third
    seen = walks_by_epoch(monkeypatch)
    run_config(short, tmp_path / "a", overrides=overrides)
    first = dict(seen)
    assert first[0] == first[1]
    assert first[2] == first[3]
    assert first[0] != first[2] != first[4] != first[0]
    assert (first["validation 0"] == first["validation 2"]) == (overrides is UNIFORM)
    seen.clear()
    run_config(short, tmp_path / "b", overrides=[*overrides, "num_workers=1"])
    assert seen == first
    seen.clear()
    run_config(short, tmp_path / "c", overrides=[*overrides, "seed=1", "dataset.split_seed=0"])
    assert seen[2] != first[2]

    for period, stop in ((4, 4), (3, 3)):  # resume at a draw of walks, and between two draws
        folder, more = tmp_path / f"resumed at {stop}", [*overrides, f"train.ckpt_period={period}"]
        with interrupted(monkeypatch, stop):
            run_config(short, folder, overrides=more)
        seen.clear()
        run_config(short, folder, overrides=[*more, "num_workers=1"])
        assert seen == {epoch: walks for epoch, walks in first.items() if int(str(epoch).split()[-1]) >= stop}


def test_walks_follow_the_attention_of_the_weights_that_are_trained_and_evaluated(short, tmp_path, monkeypatch):
    checked, training, test = [], GraphModule.training_step, GraphModule.test_step

    def check(module, batch, kind):
        layer, inputs = module.model.layers[0].attn, []
        handle = layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        module.eval()
        with torch.no_grad():
            module(batch)
        handle.remove()
        wanted = layer.edge_attention(inputs[0], batch.edge_index)
        torch.testing.assert_close(batch[TRANSITION], wanted)
        checked.append(kind)

    def train(self, batch, index):
        if index == 0 and self.current_epoch in (2, 4):  # the weights have not changed since the draw
            check(self, batch, self.current_epoch)
            self.train()
        return training(self, batch, index)

    def evaluate(self, batch, index):
        check(self, batch, "test")
        return test(self, batch, index)

    monkeypatch.setattr(GraphModule, "training_step", train)
    monkeypatch.setattr(GraphModule, "test_step", evaluate)
    overrides = [*FOLLOWING, "gt.layers=2", "train.batch_size=30"]
    first = run_config(short, tmp_path, overrides=overrides, name="first")
    assert checked == [2, 4, "test"]
    again = [f"pretrained.dir={tmp_path / 'first'}", "train.mode=inference-only"]
    second = run_config(short, tmp_path, overrides=[*overrides, *again], name="second")
    for name in ("val_loss", "test_loss"):
        assert second["metrics"][name]["mean"] == pytest.approx(first["metrics"][name]["mean"], rel=1e-5)
