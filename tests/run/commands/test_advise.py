import io

import pytest
import torch
from rich.console import Console
from torch_geometric.data import Data

from pyg_topomask.datasets import register_dataset
from pyg_topomask.nn import ATTENTION, MASK
from pyg_topomask.run.cli import main
from pyg_topomask.run.commands import advise as command
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.output.progress import Display, Job
from pyg_topomask.run.trials import Trial, run_trial


@pytest.mark.slow
def test_the_command_tries_attentions_in_processes_of_their_own(tiny_file, capsys):
    assert main(["advise", str(tiny_file), "--attention", "GRF", "--attention", "none", "--seconds", "1"]) == 0
    found = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    rows = {cells[1]: cells[3:12:2] for cells in found}
    assert set(rows) == {"GRF", "none"}
    for seconds, before, memory, *_ in rows.values():
        assert float(seconds) > 0
        assert float(before) >= 0
        assert memory == "–" or int(memory.replace(",", "")) > 100
    assert int(rows["GRF"][3].replace(",", "")) > int(rows["none"][3].replace(",", ""))


def test_a_line_has_costs_or_a_problem(tiny_file, monkeypatch):
    """Trials run in this process, which spares the start of another."""
    monkeypatch.setattr(command, "in_process", lambda function, *arguments, **limits: run_trial(*arguments))
    shown = []
    monkeypatch.setattr(Job, "update", lambda job, done, note="": shown.append((job.title, done, note)))
    found = command.advise(str(tiny_file), ["Masked:toeplitz", "KMIP"], 0.01)
    assert shown[-2:] == [("attentions tried", 0, "now Masked:toeplitz"), ("attentions tried", 1, "now KMIP")]
    assert list(found) == ["KMIP", "Masked:toeplitz"]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(command.as_text(found))
    lines = console.export_text().splitlines()
    assert any("│ KMIP " in line and line.count("–") == 1 for line in lines)  # it has no mask
    assert any("│ Masked:toeplitz │       – │" in line for line in lines)
    assert any(line.startswith("Masked:toeplitz: topomask.mask_toeplitz.grid_shape") for line in lines)


def test_one_graph_gets_a_line_where_another_order_of_its_nodes_helps(registries, tmp_path, monkeypatch):
    numbers, nodes = torch.randperm(20_000), torch.arange(20_000)
    edges = torch.stack([numbers, numbers.roll(1)])
    ring = Data(torch.randn(20_000, 4), torch.cat([edges, edges.flip(0)], 1), y=nodes % 2)
    register_dataset("ring", lambda: ring)
    monkeypatch.setattr(command, "in_process", lambda *arguments, **limits: Trial())
    said = []
    monkeypatch.setattr(Display, "say", lambda display, text: said.append(text))
    path, data = tmp_path / "ring.yaml", "{format: Registered, name: ring, task: node, split_mode: random}"
    path.write_text(f"dataset: {data}\ngt: {{layer_type: GCN+GRF}}\n")
    command.advise(str(path), ["Linear"], 1)
    assert any("makes that 2, so that they lie near" in line for line in said)


@pytest.mark.parametrize("given", ["none", "heat"])
def test_every_attention_and_mask_is_a_candidate(tiny, given):
    changes = [f"topomask.mask={given}"]
    tried = command.candidates(load(tiny, changes).config)
    found = {name: load(tiny, [*changes, *settings]).config for name, settings in tried.items()}
    names = {"none", *ATTENTION, *(f"Masked:{mask}" for mask in MASK)}
    assert {*found} == names - {"Masked", "Masked:grf", "Masked:rwgnk"}
    for name, config in found.items():
        attention, _, mask = name.partition(":")
        assert config.gt.layer_type == f"GIN+{'None' if name == 'none' else attention}"
        assert config.gt.attentions == ([] if name == "none" else [attention])
        assert config.mask_name == (mask or None)
