import base64
import io
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch_geometric.data import Data
from torch_geometric.transforms import ToSparseTensor

from pyg_topomask import nn, operators, transforms, viz
from pyg_topomask.viz.drawing import _layout
from pyg_topomask.viz.mask import DIVERGING

matplotlib = pytest.importorskip("matplotlib")

EDGES = torch.tensor([[0, 1, 1, 2, 1, 3], [1, 0, 2, 1, 3, 1]])
MASK = torch.tensor([[9.0, 2.0, 0.5, 0.5], [2.0, 9.0, 1.0, 3.0], [0.5, 1.0, 9.0, 0.0], [0.5, 3.0, 0.0, 9.0]])


@pytest.fixture(autouse=True)
def _close():
    yield
    matplotlib.pyplot.close("all")


def test_mask_picture_shows_the_matrix_and_one_row():
    figure = viz.plot_mask(operators.DenseOperator(MASK.requires_grad_()), EDGES, title="learned", node=2)
    matrix, graph = figure.axes[:2]
    np.testing.assert_array_equal(matrix.images[0].get_array(), MASK.detach())
    assert matrix.images[0].get_clim() == (0, 9)
    assert matrix.get_title() == "learned"
    assert "j" in matrix.get_xlabel()
    lines, others, star = graph.collections
    assert len(lines.get_segments()) == EDGES.size(1)
    assert others.get_array().tolist() == [0.5, 1.0, 0.0]
    assert others.get_clim() == matrix.images[0].get_clim()
    assert len(star.get_offsets()) == 1
    assert star.get_array().tolist() == [9.0]  # a node's own weight
    assert star.get_clim() == matrix.images[0].get_clim()
    assert all("no unit, square-root scale" in bar.get_ylabel() for bar in figure.axes[2:])
    bar = viz.plot_mask(MASK.detach(), EDGES, symbol="A").axes[2].get_ylabel()
    assert bar.startswith("weight $A_{ij}$")
    assert "node 1 " in viz.plot_mask(MASK.detach(), EDGES).axes[1].get_title()  # that with most neighbours
    sparse = ToSparseTensor()(Data(edge_index=EDGES, num_nodes=4))
    assert "node 1 " in viz.plot_mask(MASK.detach(), sparse).axes[1].get_title()
    idle = MASK.detach() * torch.tensor([[1], [0], [1], [1]])  # it attends to none
    assert "node 0 " in viz.plot_mask(idle, EDGES).axes[1].get_title()


def test_negative_weights_get_a_symmetric_scale_and_heads_are_chosen():
    heads = torch.stack([MASK, -MASK]).detach()
    image = viz.plot_mask(heads, head=1).axes[0].images[0]
    np.testing.assert_array_equal(image.get_array(), heads[1])
    assert image.get_clim() == (-9, 9)
    np.testing.assert_allclose(image.norm([-9.0, -2.25, 0.0, 2.25, 9.0]), [0, 0.25, 0.5, 0.75, 1])
    assert image.get_cmap().name == DIVERGING


def test_modules_and_weights_of_attention_are_drawn_with_their_graph():
    graph = transforms.AddHops()(Data(torch.randn(5, 8), EDGES, num_nodes=5))  # the last node is alone
    mask = nn.HopMask(heads=2)
    drawn = viz.plot_mask(mask, graph, head=1).axes[0].images[0].get_array()
    np.testing.assert_allclose(drawn, mask(graph).to_dense()[1].detach())
    attn = nn.MaskedAttention(8, heads=2, kernel="elu1", mask=mask)
    _, (pairs, weights) = attn(graph.x, graph=graph, return_attention_weights=True)
    figure = viz.plot_mask((pairs, weights), graph, head=1)
    drawn = figure.axes[0].images[0].get_array()
    np.testing.assert_array_equal(viz.plot_mask(attn, graph, head=1).axes[0].images[0].get_array(), drawn)
    assert figure.axes[0].get_title() == "$A$, head 1"
    assert drawn.shape == (5, 5)
    np.testing.assert_allclose(drawn[pairs[0], pairs[1]], weights[:, 1].detach())
    np.testing.assert_allclose(drawn.sum(1), 1, rtol=1e-6)
    assert len(figure.axes[1].collections[0].get_segments()) == EDGES.size(1)


def test_a_notebook_shows_an_operator_as_a_picture_of_each_head():
    matrix = torch.tensor([[4.0, -1.0], [0.0, 0.25]])
    shown = operators.DenseOperator(torch.stack([matrix, -matrix / 2]).requires_grad_())._repr_html_()
    assert shown.startswith("<code>DenseOperator(num_nodes=2, heads=2)</code>, largest entry 4 ")
    pictures = [base64.b64decode(found) for found in re.findall(r'src="data:image/png;base64,(.+?)"', shown)]
    first, second = (np.array(Image.open(io.BytesIO(picture))).tolist() for picture in pictures)
    blue, white = [0, 76, 255], [255, 255, 255]  # the darkest; nothing
    assert first == [[blue, [255, 165, 127]], [white, [191, 210, 255]]]  # levels 1, −1/2, 0, 1/4 by square roots
    assert second[0][0][0] == 255 > second[0][0][2]  # negative: red
    assert operators.DenseOperator(torch.zeros(3, 3))._repr_html_().count("<img") == 1
    assert operators.OnesOperator(torch.zeros(100_000, dtype=torch.long))._repr_html_().count("<img") == 0


def test_given_axes_are_used():
    figure, axes = matplotlib.pyplot.subplots()
    assert viz.plot_curves({"a": {"epoch": [0, 1], "loss": [2.0, 1.0]}}, keys=["loss"], ax=[axes]) is figure
    assert axes.get_ylabel() == "loss"


CURVE = {"a": {"epoch": [0], "loss": [1.0], "b": [1.0]}}


@pytest.mark.parametrize(
    ("draw", "arguments", "error", "text"),
    [
        ("mask", {"mask": torch.ones(3, 2)}, ValueError, r"\[N, N\].*got \(3, 2\)"),
        ("mask", {"mask": torch.ones(0, 0)}, ValueError, "N > 0"),
        ("mask", {"mask": torch.ones(2, 3, 3), "head": 2}, IndexError, "'head' is 2, but the mask has 2 heads"),
        ("mask", {"mask": torch.ones(3, 3)}, IndexError, "index 3 is out of bounds"),
        ("mask", {"mask": torch.ones(4, 4), "node": 4}, IndexError, "'node' is 4"),
        ("mask", {"mask": torch.ones(2001, 2001)}, ValueError, "the limit is 2000"),
        ("curves", {"metrics": CURVE, "keys": ["val_loss"]}, KeyError, "'a' has no column 'val_loss'.*epoch, loss"),
        ("curves", {"metrics": CURVE, "keys": ["b", "loss"], "labels": ["b"]}, ValueError, "shorter than"),
    ],
)
def test_what_cannot_be_drawn(draw, arguments, error, text):
    given = {"mask": {"edge_index": EDGES}}
    with pytest.raises(error, match=text):
        getattr(viz, f"plot_{draw}")(**{**given.get(draw, {}), **arguments})


def test_curves_are_mean_and_standard_deviation_over_seeds():
    nan = float("nan")
    runs = [
        {"epoch": [0, 0, 1, 1, 2], "loss": [nan, 1.0, 3.0, None, 7.0]},  # rows of training and validation alternate
        {"epoch": [0, 1], "loss": [3.0, ""]},
    ]
    figure = viz.plot_curves({"ours": runs, "theirs": runs[0]}, keys=["loss"], labels=["loss (nats)"])
    ours, theirs = figure.axes[0].lines
    assert ours.get_xydata().tolist() == [[0, 2], [1, 3], [2, 7]]
    assert theirs.get_xydata().tolist() == [[0, 1], [1, 3], [2, 7]]
    (band,) = figure.axes[0].collections
    edge = band.get_paths()[0].vertices
    spread = 2**0.5  # of 1 and 3
    assert edge[:, 1][edge[:, 0] == 0].max() == pytest.approx(2 + spread)
    assert edge[:, 1][edge[:, 0] == 0].min() == pytest.approx(2 - spread)
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["ours", "theirs"]
    assert figure.axes[0].get_ylabel() == "loss (nats)"


def test_save_writes_and_closes_a_figure(tmp_path):
    path = tmp_path / "new" / "mask.png"
    figure = viz.plot_mask(MASK.detach())
    assert viz.save_figure(figure, path) == path
    assert path.read_bytes().startswith(b"\x89PNG")
    assert not matplotlib.pyplot.fignum_exists(figure.number)
    assert list(path.parent.iterdir()) == [path]


def test_layout_pulls_neighbours_together_and_parts_apart():
    ring = np.arange(12)
    edges = np.stack([ring, (ring + 1) % 12])
    path = np.array([[0, 1, 2, 4, 5, 6], [1, 2, 3, 5, 6, 7]])
    position, parts = _layout(edges, 12), _layout(path, 8)
    assert (position.shape, position.min(), position.max()) == ((12, 2), 0, 1)
    distance, of_parts = (np.linalg.norm(x[:, None] - x, axis=2) for x in (position, parts))
    assert distance[edges[0], edges[1]].mean() < 0.6 * distance[np.triu_indices(12, 1)].mean()
    np.testing.assert_array_equal(position, _layout(edges, 12))
    assert of_parts[path[0], path[1]].min() > 0.08  # no part is a point
    assert of_parts[:4, 4:].min() > 0.08


def test_missing_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"Pictures need matplotlib: pip install 'pyg_topomask\[run\]'"):
        viz.plot_mask(np.ones((2, 2)))


def test_weights_of_no_pairs_are_zeros():
    graph = Data(x=torch.randn(3, 8), edge_index=torch.empty(2, 0, dtype=torch.int64))
    figure = viz.plot_mask(nn.SANAttention(8, full_graph=False), graph)
    assert np.array_equal(figure.axes[0].images[0].get_array(), np.zeros((3, 3)))


def test_curves_of_walks_say_the_share_that_exceeds_them():
    data = Data(edge_index=EDGES, num_nodes=4)
    rows = nn.walk_errors(nn.GRFMask(), transforms.AddRandomWalks(seed=0), data, draws=1, risk=0.125)
    errors, sizes = viz.plot_walks(rows, 16).axes
    assert "error that 12.5 % of entries exceed" in errors.get_legend_handles_labels()[1]
    assert "entries that 12.5 % of rows exceed" in sizes.get_legend_handles_labels()[1]
