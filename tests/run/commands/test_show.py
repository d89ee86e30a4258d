import matplotlib
import pytest
import torch
import yaml
from torch_geometric.data import Data

from pyg_topomask.nn import GRFMask
from pyg_topomask.run.cli import main
from pyg_topomask.run.commands.show import picture
from pyg_topomask.run.commands.walk_quality import DRAWS, NUM_WALKS, walk_quality
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.runner import run_config
from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddRandomWalks

matplotlib.use("Agg")


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


@pytest.fixture
def grf(tiny, tmp_path):
    path = tmp_path / "grf.yaml"
    path.write_text(yaml.safe_dump(tiny))
    return path


def counts(figure):
    """Number of queries that keep each node, from the matrix of kept pairs."""
    return (figure.axes[0].images[0].get_array() >= 2).sum(0).tolist()


def test_command_writes_a_picture(kmip, tmp_path, capsys):
    out = tmp_path / "new" / "kept.png"
    arguments = ["--out", str(out), "--graph", "7", "--layer", "1", "--head", "1", "--node", "2", "gt.sparse.k=4"]
    assert main(["show", "attention", str(kmip), *arguments]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert f"wrote {out}" in capsys.readouterr().out


def test_attention_shows_what_the_layer_keeps(kmip, monkeypatch):
    found = []

    def recorded(*arguments, **options):
        found.append(arguments[0])
        return plot(*arguments, **options)

    from pyg_topomask.run.commands import show

    plot = show.plot_kept_pairs
    monkeypatch.setattr(show, "plot_kept_pairs", recorded)
    figure = picture("attention", kmip, graph=5, layer=1, head=1)
    assert counts(figure) == found[0][:, 1].flatten().bincount(minlength=len(found[0])).tolist()
    assert "kmip, graph 5, layer 1, head 1" in figure.axes[0].get_title()
    assert "untrained, weights drawn from seed 0" in figure.axes[0].get_title()
    assert found[0].shape[1:] == (2, 3)
    state = torch.get_rng_state()
    picture("attention", kmip, graph=5, layer=1, head=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(found[1], found[0])  # the same weights again
    picture("attention", kmip, graph=5, layer=1, overrides=["seed=1"])
    assert not torch.equal(found[2], found[0])


@pytest.mark.slow
def test_trained_weights_are_shown(kmip, tmp_path):
    run_config(kmip, tmp_path / "out", overrides=["optim.base_lr=0.3"])
    folder = tmp_path / "out" / "kmip" / "0"
    trained = picture("attention", kmip, layer=1, checkpoint=folder, overrides=["optim.base_lr=0.3"])
    assert "trained for " in trained.axes[0].get_title()
    of_run = picture("attention", folder / "config.yaml", layer=1, checkpoint=folder)
    assert "circle, graph 0" in of_run.axes[0].get_title()  # the data set, not config.yaml
    again = picture("attention", kmip, layer=1, checkpoint=folder / "best.ckpt")
    assert counts(again) == counts(trained) != counts(picture("attention", kmip, layer=1))
    with pytest.raises(RunError, match=r"best\.ckpt is of another model \("):
        picture("attention", kmip, checkpoint=folder, overrides=["gt.layers=1"])
    (folder / "best.ckpt").write_bytes(b"junk")
    with pytest.raises(RunError, match=r"--checkpoint: .*best\.ckpt is damaged"):
        picture("attention", kmip, checkpoint=folder)
    with pytest.raises(RunError, match=r"--checkpoint: .*none does not exist"):
        picture("attention", kmip, checkpoint=tmp_path / "none")


def test_mask_is_drawn_with_a_row(grf):
    figure = picture("mask", grf, graph=3, node=2)
    assert "grf, graph 3" in figure.axes[0].get_title()
    assert "node 2 " in figure.axes[1].get_title()
    matrix = figure.axes[0].images[0].get_array()
    assert (matrix.diagonal() > 0).all()


@pytest.mark.parametrize("layer_type", ["GIN+KMIP+GRF", "GIN+GRF+KMIP", "GIN+Linear+GRF+KMIP"])
def test_layers_with_several_attentions_have_every_picture(grf, layer_type):
    steps = "posenc_RWSE.dim_pe=4 posenc_RWSE.kernel.times=[1,2,3] posenc_RWSE.model=Linear posenc_RWSE.enable=true"
    choice = [f"gt.layer_type={layer_type}", "gt.sparse.k=3", "dataset.node_encoder_name=LinearNode+RWSE"]
    choice += steps.split()
    assert "3 keys for each node" in picture("attention", grf, overrides=choice).axes[0].get_title()
    assert "grf, graph 0" in picture("mask", grf, overrides=choice).axes[0].get_title()
    assert "grf, graph 0" in picture("walks", grf, overrides=choice).axes[0].get_title()


def test_quality_of_walks_is_drawn_against_their_number(grf, tmp_path, capsys):
    out = tmp_path / "walks.png"
    assert main(["show", "walks", str(grf), "--out", str(out), "gt.n_heads=2", "--head", "1"]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    figure = picture("walks", grf, graph=3, overrides=["topomask.num_tables=2", "gt.layers=2"], layer=1)
    share, rows, errors = figure.axes
    assert "grf, graph 3, layer 1" in share.get_title()
    assert len(share.lines) == 2
    assert len(rows.lines) == 4
    assert len(errors.lines) == 5
    assert set(share.lines[1].get_xdata()) == {4}  # the config's number of walks


@pytest.mark.parametrize("settings", [{}, {"diagonal": "corrected"}, {"table": 1}, {"symmetric": False}])
def test_quality_of_walks(settings):
    data, mask = GRAPHS["star"], GRFMask(2, **{"max_length": 3, **settings})
    with torch.no_grad():
        mask.modulation[1] = torch.tensor([1.0, -1.0, 0.5, 0.2])
        walks = AddRandomWalks(max_length=3, halt_prob=0.2, seed=0, num_tables=2, diagonal=mask.diagonal)
        found = walk_quality(mask, walks, data, head=1)
        many = AddRandomWalks(2000, 3, 0.2, seed=0, num_tables=2, diagonal=mask.diagonal)(data)
        exact = mask(many).to_dense()[1].double()  # nearly
    assert found["walks"] == list(NUM_WALKS)
    assert found["coverage"] == sorted(found["coverage"])
    assert found["coverage"][-1] == pytest.approx(1)  # a star's nodes all reach each other in three hops
    assert found["entries"][-1] == pytest.approx(5)
    for name in ("error", "quantile", "bound"):
        assert found[name][-1] < 0.5 * found[name][0]
    for error, estimated, quantile, bound in zip(*(found[x] for x in ("error", "estimated", "quantile", "bound"))):
        assert estimated == pytest.approx(error, rel=0.7)
        assert 0 < error < 2 * quantile < 2 * bound
    few = AddRandomWalks(256, 3, 0.2, seed=0, num_tables=2, diagonal=mask.diagonal)
    off, draws = ~torch.eye(5, dtype=torch.bool), []
    for epoch in range(DRAWS):
        few.set_epoch(epoch)
        draws.append(mask(few(data)).to_dense()[1].double().detach())
    wanted = (torch.stack(draws) - exact)[:, off].square().mean().sqrt()
    assert found["error"][-1] == pytest.approx(float(wanted), rel=0.3)


def test_graphs_without_an_entry_or_with_too_many_have_no_quality():
    with pytest.raises(ValueError, match="no two nodes are connected"):
        walk_quality(GRFMask(), AddRandomWalks(), GRAPHS["single"])
    with pytest.raises(ValueError, match="at most 3,000 nodes \\(got 3,001\\)"):
        walk_quality(GRFMask(), AddRandomWalks(), Data(num_nodes=3001))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("attention", {"overrides": ["gt.layer_type=GIN+GRF"]}, r"=GIN\+KMIP \(got GIN\+GRF\).*show mask'"),
        ("attention", {"overrides": ["gt.layer_type=GCN+None"]}, r"=GCN\+KMIP \(got GCN\+None\)$"),
        ("mask", {}, r"=GIN\+GRF \(got GIN\+KMIP\).*show attention'"),
        ("walks", {}, r"'walks' needs a mask of graph random features, such as gt.layer_type=GIN\+GRF"),
        ("walks", {"overrides": ["gt.layer_type=GIN+GRF"], "node": 1}, "--node is for the pictures of"),
        ("attention", {"graph": 48}, r"--graph must be from 0 to 47 \(got 48\)"),
        ("attention", {"layer": 2}, r"--layer must be from 0 to 1 \(got 2\)"),
        ("attention", {"head": -1}, r"--head must be from 0 to 1 \(got -1\)"),
        ("attention", {"node": 99}, r"--node must be from 0 to \d+ \(got 99\)"),
    ],
)
def test_what_cannot_be_drawn(kmip, kind, options, message):
    with pytest.raises(RunError, match=message):
        picture(kind, kmip, **options)


def test_a_picture_that_cannot_be_written(kmip, tmp_path, capsys):
    assert main(["show", "attention", str(kmip), "--out", str(tmp_path / "a.txt")]) == 1
    assert "'txt' is not supported" in capsys.readouterr().err
    assert main(["show", "attention", str(kmip), "--out", str(kmip / "a.png")]) == 1
    assert "--out: " in capsys.readouterr().err
