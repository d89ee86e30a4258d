import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data

from pyg_topomask.run.task import Task, classification
from pyg_topomask.run.training.metrics import (
    ClassScores,
    CommonHits,
    LabelAccuracy,
    LinkRanks,
    LossMean,
    PartScores,
    RankScores,
    RegressionScores,
    build_metrics,
    metric_names,
)
from pyg_topomask.run.training.ranking import candidates


def in_parts(metric, *values, sizes=(3, 1, 200)):
    """Values of the metric after updates with batches of several sizes."""
    start = 0
    for size in sizes:
        part = [value[start : start + size] for value in values]
        if len(part[0]):
            metric.update(*part)
        start += size
    return {name: float(value) for name, value in metric.compute().items()}


def labels_with_gaps(num_rows, num_labels):
    prediction = torch.randn(num_rows, num_labels).mul(4).round().div(4)  # some scores are equal
    target = (torch.rand(num_rows, num_labels) < 0.3).float()
    target[torch.rand(num_rows, num_labels) < 0.2] = float("nan")
    target[:, -1] = 0  # a label without positives has no area
    return prediction, target


@pytest.mark.parametrize(("metric", "data"), [("ap", "ogbg-molpcba"), ("rocauc", "ogbg-moltox21")])
def test_ranks_equal_ogb(metric, data):
    evaluator = pytest.importorskip("ogb.graphproppred").Evaluator(data)
    prediction, target = labels_with_gaps(150, evaluator.num_tasks)
    expected = evaluator.eval({"y_true": target, "y_pred": prediction})[metric]
    name = {"rocauc": "auc"}.get(metric, metric)
    assert in_parts(RankScores(("auc", "ap")), prediction, target)[name] == pytest.approx(expected, abs=1e-12)


def test_binary_ranks_equal_ogb():
    evaluator = pytest.importorskip("ogb.graphproppred").Evaluator("ogbg-molhiv")
    prediction, target = torch.randn(150).mul(3).round() * 40, (torch.rand(150) < 0.1).float()  # sigmoids are 1
    expected = evaluator.eval({"y_true": target[:, None], "y_pred": prediction[:, None]})["rocauc"]
    assert in_parts(RankScores(("auc",)), prediction, target)["auc"] == pytest.approx(expected, abs=1e-12)


def test_ranks_by_hand_and_without_positives():
    prediction, target = torch.tensor([3.0, 2.0, 2.0, 1.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    values = in_parts(RankScores(("auc", "ap")), prediction, target)
    assert values["auc"] == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    assert values["ap"] == pytest.approx(1 / 2 * 1 + 1 / 2 * 2 / 3)
    assert np.isnan(in_parts(RankScores(("auc",)), prediction, torch.zeros(4))["auc"])


def test_area_of_several_classes_is_one_against_the_rest():
    prediction, target = torch.randn(90, 3), torch.arange(90) % 3
    expected = 0.0
    scores = prediction.softmax(1)
    for c in range(3):
        above = (scores[target == c, c][:, None] > scores[target != c, c][None, :]).double().mean()
        expected += float(above) / 3
    assert in_parts(RankScores(("auc",), 3), prediction, target)["auc"] == pytest.approx(expected)


def test_class_scores_by_hand():
    guess, true = torch.tensor([0, 0, 1, 2, 2, 0]), torch.tensor([0, 1, 1, 2, 0, 0])
    logits = torch.nn.functional.one_hot(guess, 4).float()  # class 3 is neither present nor predicted
    values = in_parts(ClassScores(4), logits, true)
    assert set(values) == {"accuracy", "f1"}
    assert values["accuracy"] == pytest.approx(4 / 6)
    assert values["f1"] == pytest.approx((4 / 6 + 2 / 3 + 2 / 3) / 3)
    for name, value in (("accuracy-SBM", (2 / 3 + 1 / 2 + 1) / 3), ("miou", (2 / 4 + 1 / 2 + 1 / 2) / 3)):
        assert in_parts(ClassScores(4, name), logits, true)[name] == pytest.approx(value)


def test_class_scores_equal_those_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    logits, true = torch.randn(204, 7), torch.randint(6, (204,))
    values = in_parts(ClassScores(7, "miou"), logits, true)
    guess = logits.argmax(1)
    assert values["f1"] == pytest.approx(sklearn.f1_score(true, guess, average="macro", zero_division=0))
    assert values["miou"] == pytest.approx(sklearn.jaccard_score(true, guess, average="macro", zero_division=0))
    binary, truth = torch.randn(204), torch.randint(2, (204,)).float()
    values = in_parts(ClassScores(2), binary, truth)
    for name, function in (
        ("accuracy", sklearn.accuracy_score),
        ("f1", sklearn.f1_score),
        ("precision", sklearn.precision_score),
        ("recall", sklearn.recall_score),
    ):
        assert values[name] == pytest.approx(function(truth, binary > 0)), name


def test_label_accuracy_leaves_out_what_is_unknown():
    prediction = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0]])
    target = torch.tensor([[1.0, float("nan")], [1.0, 1.0], [float("nan"), 1.0]])
    assert in_parts(LabelAccuracy(2), prediction, target)["accuracy"] == pytest.approx((1 / 2 + 1 / 2) / 2)


def test_regression_scores():
    stats = pytest.importorskip("scipy.stats")
    prediction, target = torch.randn(50, 3), torch.randn(50, 3).round()
    target[::7, 1] = float("nan")
    values = in_parts(RegressionScores(), prediction, target)
    known = ~target.isnan()
    error = (prediction - target)[known].double()
    assert values["mae"] == pytest.approx(float(error.abs().mean()))
    assert values["mse"] == pytest.approx(float(error.square().mean()))
    columns = [(prediction[known[:, i], i].double(), target[known[:, i], i].double()) for i in range(3)]
    spearman = [stats.spearmanr(p.numpy(), t.numpy())[0] for p, t in columns]
    assert values["spearmanr"] == pytest.approx(np.mean(spearman))
    r2 = [1 - float(((p - t) ** 2).sum() / ((t - t.mean()) ** 2).sum()) for p, t in columns]
    assert values["r2"] == pytest.approx(np.mean(r2))
    roots = [float(((p - t) ** 2).mean()) ** 0.5 for p, t in columns]
    assert values["rmse"] == pytest.approx(np.mean(roots))


def test_r2_of_a_constant_target_is_that_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    target = torch.full((4, 1), 2.0)
    for prediction in (target, target + torch.tensor([[0.0], [1.0], [0.0], [0.0]])):
        assert in_parts(RegressionScores(), prediction, target)["r2"] == sklearn.r2_score(target, prediction)


def link_graphs():
    """Graphs of several sizes, including one with a single node and one without positive links."""
    graphs = []
    for size, links in ((6, [(0, 3), (3, 0), (0, 4)]), (1, []), (5, [(1, 2)]), (4, [])):
        positive = torch.tensor(links, dtype=torch.long).view(-1, 2).T
        negative = torch.tensor([[0], [size - 1]])
        label = torch.tensor([1] * len(links) + [0])
        edges = torch.cat([positive, negative], dim=1)
        graphs.append(Data(x=torch.randn(size, 3).round(), edge_label_index=edges, edge_label=label))
    return graphs


def reference_ranks(graph):
    """MRR of one graph from the definition: raw, without other positives, and also without the start."""
    score = graph.x @ graph.x.T
    links = graph.edge_label_index[:, graph.edge_label == 1].T.tolist()
    values = []
    for mode in range(3):
        inverse = []
        for start, end in links:
            rivals = [
                j
                for j in range(graph.num_nodes)
                if j != end and not (mode >= 1 and [start, j] in links) and not (mode == 2 and j == start)
            ]
            more = sum(float(score[start, j]) > float(score[start, end]) for j in rivals)
            same = sum(float(score[start, j]) == float(score[start, end]) for j in rivals)
            inverse.append(1 / (1 + more + same / 2))
        values.append(sum(inverse) / len(inverse) if inverse else 0.0)
    return values


def add_links(metric, graphs):
    batch = Batch.from_data_list(graphs)
    pairs = candidates(batch)
    score = (batch.x[pairs.edge_index[0]] * batch.x[pairs.edge_index[1]]).sum(1)
    metric.update(score, pairs)


def test_link_ranks_equal_the_definition():
    graphs = link_graphs()
    metric = LinkRanks()
    batches = [graphs[:3], graphs[3:]]
    for batch in batches:
        add_links(metric, batch)
    values = metric.compute()
    means = [torch.tensor([reference_ranks(g) for g in batch]).mean(0) for batch in batches]
    edges = [sum(g.edge_label.numel() for g in batch) for batch in batches]
    expected = (means[0] * edges[0] + means[1] * edges[1]) / sum(edges)
    for number, name in enumerate(("mrr", "mrr_filt", "mrr_filt_self")):
        assert float(values[name]) == pytest.approx(float(expected[number])), name
    assert float(values["mrr"]) < float(values["mrr_filt"]) <= float(values["mrr_filt_self"])


def test_link_ranks_equal_ogb_on_one_graph():
    evaluator = pytest.importorskip("ogb.linkproppred").Evaluator("ogbl-citation2")
    graph = link_graphs()[0]
    score = graph.x @ graph.x.T
    start, end = graph.edge_label_index[:, graph.edge_label == 1]
    rivals = torch.stack([score[s][torch.arange(6) != e] for s, e in zip(start.tolist(), end.tolist())])
    expected = evaluator.eval({"y_pred_pos": score[start, end], "y_pred_neg": rivals})
    metric = LinkRanks()
    add_links(metric, [graph])
    values = metric.compute()
    assert float(values["mrr"]) == pytest.approx(float(expected["mrr_list"].mean()))
    for k in (1, 3, 10):
        assert float(values[f"hits@{k}"]) == pytest.approx(float(expected[f"hits@{k}_list"].mean()))


def test_common_hits_equal_ogb():
    evaluator = pytest.importorskip("ogb.linkproppred").Evaluator("ogbl-collab")
    score, target = torch.randn(400).mul(20).round(), (torch.rand(400) < 0.5).long()
    expected = evaluator.eval({"y_pred_pos": score[target == 1], "y_pred_neg": score[target == 0]})["hits@50"]
    assert in_parts(CommonHits(50), score, target, sizes=(7, 393))["hits@50"] == pytest.approx(expected)


def test_parts_of_shapes():
    metric = PartScores(((0, 1), (2, 3)))
    logits = torch.full((6, 4), -9.0)
    logits[:, 3] = 9.0  # not a part of the first category, so it is ignored there
    logits[[0, 1], 0], logits[2, 1], logits[[3, 4, 5], 2] = 1.0, 1.0, 0.0
    target = torch.tensor([0, 1, 1, 3, 3, 3])
    shape = torch.tensor([0, 0, 0, 1, 1, 1])
    metric.update(logits, target, Data(batch=shape, category=torch.tensor([0, 1])))
    values = metric.compute()
    first, second = (1 / 2 + 1 / 2) / 2, 1.0  # part 2 is neither present nor predicted, which counts 1
    assert float(values["instance_miou"]) == pytest.approx((first + second) / 2)
    metric.update(logits[3:], torch.tensor([2, 2, 2]), Data(batch=shape[:3], category=torch.tensor([1])))
    values = metric.compute()
    assert float(values["instance_miou"]) == pytest.approx((first + second + 0) / 3)
    assert float(values["category_miou"]) == pytest.approx((first + (second + 0) / 2) / 2)


def test_loss_is_a_mean_over_targets():
    metric = LossMean()
    metric.update(torch.tensor(1.0), 3)
    metric.update(torch.tensor(5.0), 1)
    assert float(metric.compute()["loss"]) == pytest.approx(2)


TASKS = [
    classification("graph", 2),
    classification("node", 5),
    Task("graph", "multilabel", 3),
    Task("graph", "regression", 2),
    Task("edge", "binary", 1, ranked=True),
    Task("edge", "binary", 1, hits_at=20),
    Task("node", "multiclass", 4, part_labels=((0, 1), (2, 3))),
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.level}-{task.kind}")
def test_names_are_those_computed(task):
    built = build_metrics(task, "auc")
    built["loss"].update(torch.tensor(0.5), 1)
    n = 6
    shape = {"multilabel": (n, 3), "regression": (n, 2), "multiclass": (n, task.num_outputs)}
    prediction = torch.randn(shape.get(task.kind, (n,)))
    target = torch.arange(prediction.numel() if task.kind in ("multilabel", "regression") else n) % 2
    if task.kind in ("multilabel", "regression"):
        target = target.view_as(prediction).float()
    found = []
    for group, metric in built.items():
        if group == "links":
            add_links(metric, link_graphs())
        elif group != "loss":
            category = torch.zeros(n, dtype=torch.long)
            metric.update(prediction, target, Data(y=[["a"]] * n, batch=torch.arange(n), category=category))
        found += list(metric.compute())
    assert sorted(metric_names(task, "auc")) == sorted(found)
