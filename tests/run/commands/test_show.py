import copy
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
import torch
import yaml
from torch_geometric.data import Batch, Data
from torch_geometric.utils.influence import total_influence

from pyg_topomask.ops.reach import mean_hops
from pyg_topomask.run.cli import main
from pyg_topomask.run.commands import show
from pyg_topomask.run.commands.show import PICTURES, load_view, picture
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.graphgps.reading import run_config


@pytest.fixture(autouse=True)
def _close():
    yield
    matplotlib.pyplot.close("all")


@pytest.fixture
def kmip(tiny, tmp_path):
    del tiny["topomask"]
    tiny["gt"] |= {"layer_type": "GIN+KMIP", "layers": 2, "sparse": {"k": 3}}
    path = tmp_path / "kmip.yaml"
    path.write_text(yaml.safe_dump(tiny))
    return path


def counts(figure):
    """Number of queries that keep each node, from the matrix of weights."""
    return (figure.axes[0].images[0].get_array() > 0).sum(0).tolist()


def test_command_writes_a_picture(kmip, tmp_path, capsys):
    out = tmp_path / "new" / "kept.png"
    arguments = ["--out", str(out), "--graph", "7", "--layer", "1", "--head", "1", "--node", "2", "gt.sparse.k=4"]
    assert main(["show", "attention", str(kmip), *arguments]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert f"wrote {out}" in capsys.readouterr().out
    for name, message in ((tmp_path / "a.txt", "'txt' is not supported"), (kmip / "a.png", "--out: ")):
        assert main(["show", "attention", str(kmip), "--out", str(name)]) == 1
        assert message in capsys.readouterr().err


def test_attention_shows_what_the_layer_keeps(kmip):
    figure = picture("attention", kmip, graph=5, layer=1, head=1)
    weights = figure.axes[0].images[0].get_array()
    assert {*(weights > 0).sum(1).tolist()} == {3}  # keys of each query
    assert weights.sum(1).tolist() == pytest.approx([1] * len(weights), rel=1e-5)
    assert "KMIPAttention, kmip, graph 5, layer 1, head 1" in figure.axes[0].get_title()
    assert "untrained, weights drawn from seed 0" in figure.axes[0].get_title()
    state = torch.get_rng_state()
    again = picture("attention", kmip, graph=5, layer=1, head=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert counts(again) == counts(figure)  # the same weights again
    assert counts(picture("attention", kmip, graph=5, layer=1, head=1, overrides=["seed=1"])) != counts(figure)


def test_nodes_that_attend_to_none_are_counted(tiny_file):
    view = load_view(tiny_file, overrides=["gt.layer_type=GIN+GRF"])
    shares = [PICTURES["attention"](view).axes[0].get_title().partition(" of the nodes attend to none")[0][-6:]]
    with torch.no_grad():
        view.attention().qkv.weight.zero_()
        view.attention().qkv.bias.fill_(-1)  # relu leaves no feature
    shares.append(PICTURES["attention"](view).axes[0].get_title().partition(" of the nodes attend to none")[0][-6:])
    assert shares[0] != shares[1] == "100.0%"


@pytest.mark.slow
def test_trained_weights_are_shown(kmip, tmp_path):
    run_config(kmip, tmp_path / "out", overrides=["optim.base_lr=0.3"])
    folder = tmp_path / "out" / "kmip" / "0"
    trained = picture("attention", folder / "config.yaml", layer=1, checkpoint=folder)
    assert "circle, graph 0" in trained.axes[0].get_title()  # the data set, not config.yaml
    assert "trained for " in trained.axes[0].get_title()
    again = picture("attention", kmip, layer=1, checkpoint=folder / "best.ckpt")
    assert counts(again) == counts(trained) != counts(picture("attention", kmip, layer=1))
    with pytest.raises(RunError, match=r"best\.ckpt is of another model \("):
        picture("attention", kmip, checkpoint=folder, overrides=["gt.layers=1"])
    with pytest.raises(RunError, match=r"--checkpoint: .*none does not exist"):
        picture("attention", kmip, checkpoint=tmp_path / "none")


@pytest.mark.parametrize("layer_type", ["GIN+KMIP+GRF", "GIN+Linear+GRF+KMIP"])
def test_layers_with_several_attentions_have_every_picture(tiny_file, layer_type):
    choice = [f"gt.layer_type={layer_type}", "gt.sparse.k=3", "dataset.node_encoder_name=LinearNode+RWSE"]
    choice += ["posenc_RWSE.dim_pe=4", "posenc_RWSE.kernel.times=[1,2,3]", "posenc_RWSE.model=Linear"]
    choice.append("posenc_RWSE.enable=true")
    titles = {kind: picture(kind, tiny_file, overrides=choice).axes[0].get_title() for kind in PICTURES}
    assert (titles.pop("reach"), titles.pop("walks")) == ("no mask", "")  # they have titles of the figure
    assert "Attention, tiny, graph 0" in titles["attention"]
    assert all("tiny, graph 0" in title for title in titles.values())


def test_reach_is_printed_and_drawn_before_and_after_training(tiny, tmp_path, capsys):
    masks = {"mask": ["none", "hop"], "mask_heads": [1, 1], "mask_hop": {"max_hops": 2}}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny | {"gt": tiny["gt"] | {"layer_type": "GIN+Masked"}, "topomask": masks}))
    view = load_view(path, whole_batch=True)
    view = replace(view, untrained=copy.deepcopy(view.model))
    with torch.no_grad():
        view.mask().masks[1].values.copy_(torch.tensor([0.0, -30.0, -30.0]))
    ones, before, after, *influences = view.reach.values()
    assert (ones.shape, before.shape, after.shape) == ((1, 18), (2, 18), (2, 18))
    torch.testing.assert_close(before[0], ones[0])
    assert before[1, 3:].eq(0).all()
    torch.testing.assert_close(after[1], torch.eye(18, dtype=torch.float64)[0])
    assert mean_hops(before)[1] > mean_hops(after)[1]
    figure = PICTURES["reach"](view)
    assert [panel.get_title() for panel in figure.axes] == [
        "no mask",
        "untrained",
        "trained",
        "influence, untrained",
        "influence, trained",
    ]
    assert figure.axes[0].get_xlabel() == "hops (diamond: more than 16, or no path)"
    assert mean_hops(influences[0]) > mean_hops(influences[1])
    np.testing.assert_allclose(figure.axes[1].lines[2].get_ydata(), before[1, :-1])
    assert main(["show", "reach", str(path), "--out", str(tmp_path / "reach.png")]) == 0
    text = capsys.readouterr().out
    assert "untrained" in text
    assert "or that no path reaches, count as 17 hops" in " ".join(text.split())
    assert (tmp_path / "reach.png").read_bytes().startswith(b"\x89PNG")
    assert main(["show", "path", str(path)]) == 0
    assert "layer 0: attention on" in capsys.readouterr().out


class After(torch.nn.Module):
    """A network as a function of its encoded nodes."""

    def __init__(self, network, graph):
        super().__init__()
        self.network, self.graph = network, graph

    def forward(self, x, edge_index):
        network, graph = self.network, self.graph
        return network.layers(x, edge_index, graph.batch, graph, 1, None)


@pytest.mark.filterwarnings("ignore")  # of tqdm
def test_influence_is_that_of_pyg(kmip, monkeypatch):
    view = load_view(kmip, graph=1)  # a connected graph
    graph = Batch.from_data_list(view.graphs)
    monkeypatch.setattr(show, "_NODES", graph.num_nodes)
    shares = view.reach["influence, untrained"]
    data = Data(view.model.node_encoder(graph).detach(), graph.edge_index)
    field = total_influence(After(view.model, graph), data, 16)[1]
    torch.testing.assert_close(float(mean_hops(shares)), field, rtol=1e-4, atol=1e-5)


def test_errors_by_the_number_of_walks_are_printed_and_drawn(tiny_file, tmp_path, capsys, monkeypatch):
    measure, calls = show.walk_errors, []
    monkeypatch.setattr(show, "walk_errors", lambda *given: calls.append(1) or measure(*given))
    out, choice = tmp_path / "walks.png", ["topomask.num_walks=12", "topomask.halt_prob=0.3"]
    assert main(["show", "walks", str(tiny_file), "--out", str(out), *choice]) == 0
    printed = capsys.readouterr().out
    assert len(calls) == 1
    assert "12 *" in printed
    assert "draws of iid walks" in printed
    assert out.read_bytes().startswith(b"\x89PNG")
    errors, sizes = picture("walks", tiny_file, overrides=[*choice, "topomask.scheme=antithetic"]).axes
    assert [line.get_label() for line in errors.lines][-1] == "the config's 12 walks"
    assert errors.lines[0].get_xdata().tolist() == [2, 4, 8, 12, 16, 32, 64, 128, 256]
    assert not any("bound" in line.get_label() for panel in (errors, sizes) for line in panel.lines)
    assert errors.get_xlabel() == sizes.get_xlabel() == "random walks from each node"


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("attention", {"overrides": ["gt.layer_type=GIN+Primphormer"]}, "Attention forms no weights of pairs"),
        ("attention", {"overrides": ["gt.layer_type=GCN+None"]}, r"=GCN\+KMIP \(got GCN\+None\)$"),
        ("mask", {}, r"=GIN\+GRF \(got GIN\+KMIP\).*show attention'"),
        ("walks", {}, r"'walks' needs an attention with a GRF mask, such as gt.layer_type=GIN\+GRF"),
        ("attention", {"graph": 48}, r"--graph must be from 0 to 47 \(got 48\)"),
        ("attention", {"layer": 2}, r"--layer must be from 0 to 1 \(got 2\)"),
        ("attention", {"head": -1}, r"--head must be from 0 to 1 \(got -1\)"),
        ("attention", {"node": 99}, r"--node must be from 0 to \d+ \(got 99\)"),
    ],
)
def test_what_cannot_be_drawn(kmip, kind, options, message):
    with pytest.raises(RunError, match=message):
        picture(kind, kmip, **options)
