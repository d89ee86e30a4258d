import matplotlib
import pytest
import torch
import yaml

from pyg_topomask.run.cli import main
from pyg_topomask.run.commands.show import picture
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.runner import run_config

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


def test_trained_weights_are_shown(kmip, tmp_path):
    run_config(kmip, tmp_path / "out", overrides=["optim.base_lr=0.3"])
    folder = tmp_path / "out" / "kmip" / "0"
    trained = picture("attention", kmip, layer=1, checkpoint=folder, overrides=["optim.base_lr=0.3"])
    assert "trained for " in trained.axes[0].get_title()
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


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("attention", {"overrides": ["gt.layer_type=GIN+GRF"]}, r"=GIN\+KMIP \(got GIN\+GRF\).*show mask'"),
        ("attention", {"overrides": ["gt.layer_type=GCN+None"]}, r"=GCN\+KMIP \(got GCN\+None\)$"),
        ("mask", {}, r"=GIN\+GRF \(got GIN\+KMIP\).*show attention'"),
        ("tree", {}, "there is no picture 'tree'; there are attention, mask"),
        ("attention", {"graph": 48}, r"--graph must be from 0 to 47 \(got 48\)"),
        ("attention", {"layer": 2}, r"--layer must be from 0 to 1 \(got 2\)"),
        ("attention", {"head": -1}, r"--head must be from 0 to 1 \(got -1\)"),
        ("attention", {"node": 99}, r"--node must be from 0 to \d+ \(got 99\), for graph 0"),
    ],
)
def test_what_cannot_be_drawn(kmip, kind, options, message):
    with pytest.raises(RunError, match=message):
        picture(kind, kmip, **options)


def test_a_picture_that_cannot_be_written(kmip, tmp_path, capsys):
    assert main(["show", "attention", str(kmip), "--out", str(tmp_path / "a.txt")]) == 1
    assert "--out must end in one of " in capsys.readouterr().err
    assert main(["show", "attention", str(kmip), "--out", str(kmip / "a.png")]) == 1
    assert "--out: " in capsys.readouterr().err
