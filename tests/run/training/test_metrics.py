import copy
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from torch_geometric.data import Batch, Data

from pyg_topomask.run.task import Task, classification, metric_names
from pyg_topomask.run.training.metrics import build_metrics, candidates

sklearn = pytest.importorskip("sklearn.metrics")


def metric_of(kind, width=1, group="scores", best="accuracy", **more):
    """A metric of a task of that kind and width."""
    return build_metrics(Task("graph", kind, width, **more), best)[group]


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


def binary():
    return torch.randn(204).mul(3).round() * 40, (torch.rand(204) < 0.3).float()  # sigmoids are 0 or 1


def classes():
    return torch.randn(204, 7), torch.randint(6, (204,))  # the last class is only predicted


def targets():
    prediction, target = torch.randn(50, 3).double(), torch.randn(50, 3).double().round()
    target[::7, 1] = float("nan")
    return prediction, target


def of_sign(score):
    return lambda prediction, target: score(target, prediction > 0)


def of_classes(score):
    return lambda prediction, target: score(target, prediction.argmax(1), average="macro", zero_division=0)


def of_known(score):
    return lambda prediction, target: score(target[~target.isnan()], prediction[~target.isnan()])


def of_columns(score):
    """Mean over the columns of the score of the known values."""
    return lambda prediction, target: np.mean([of_known(score)(p, t) for p, t in zip(prediction.T, target.T)])


def of_ogb(data, name):
    def score(prediction, target):
        evaluator = pytest.importorskip("ogb.graphproppred").Evaluator(data)
        rows = {"y_true": target.view(len(target), -1), "y_pred": prediction.view(len(target), -1)}
        return evaluator.eval(rows)[name]

    return score


def hits_of_ogb(prediction, target):
    evaluator = pytest.importorskip("ogb.linkproppred").Evaluator("ogbl-collab")
    return evaluator.eval({"y_pred_pos": prediction[target == 1], "y_pred_neg": prediction[target == 0]})["hits@50"]


TWOS = torch.full((4, 1), 2.0)  # whose variance is 0
REFERENCES = [
    (metric_of("binary"), binary, "accuracy", of_sign(sklearn.accuracy_score)),
    (metric_of("binary"), binary, "f1", of_sign(sklearn.f1_score)),
    (metric_of("binary"), binary, "precision", of_sign(sklearn.precision_score)),
    (metric_of("binary"), binary, "recall", of_sign(sklearn.recall_score)),
    (metric_of("multiclass", 7), classes, "accuracy", lambda p, t: sklearn.accuracy_score(t, p.argmax(1))),
    (metric_of("multiclass", 7), classes, "f1", of_classes(sklearn.f1_score)),
    (metric_of("multiclass", 7, best="miou"), classes, "miou", of_classes(sklearn.jaccard_score)),
    (metric_of("multiclass", 7, best="accuracy-SBM"), classes, "accuracy-SBM", of_classes(sklearn.recall_score)),
    (metric_of("multiclass", 6, "ranks", "auc"), lambda: (torch.randn(204, 6), torch.arange(204) % 6), "auc",
     lambda p, t: sklearn.roc_auc_score(t, p.softmax(1), multi_class="ovr")),
    (metric_of("binary", group="hits", hits_at=50), binary, "hits@50", hits_of_ogb),
    (metric_of("binary", group="ranks"), binary, "auc", of_ogb("ogbg-molhiv", "rocauc")),
    (metric_of("multilabel", 12, "ranks"), lambda: labels_with_gaps(150, 12), "auc", of_ogb("ogbg-moltox21", "rocauc")),
    (metric_of("multilabel", 12, "ranks"), lambda: labels_with_gaps(150, 128), "ap", of_ogb("ogbg-molpcba", "ap")),
    (metric_of("multilabel", 3), lambda: labels_with_gaps(150, 3), "accuracy",
     of_columns(lambda t, p: sklearn.accuracy_score(t, p > 0))),
    (metric_of("regression", 3), targets, "mae", of_known(sklearn.mean_absolute_error)),
    (metric_of("regression", 3), targets, "mse", of_known(sklearn.mean_squared_error)),
    (metric_of("regression", 3), targets, "rmse", of_columns(lambda t, p: sklearn.mean_squared_error(t, p) ** 0.5)),
    (metric_of("regression", 3), targets, "r2", of_columns(sklearn.r2_score)),
    (metric_of("regression", 3), targets, "spearmanr", of_columns(lambda t, p: stats.spearmanr(t, p)[0])),
    (metric_of("regression", 3), lambda: (TWOS, TWOS), "r2", of_columns(sklearn.r2_score)),
    (metric_of("regression", 3), lambda: (torch.eye(4)[:, :1], TWOS), "r2", of_columns(sklearn.r2_score)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "data", "name", "reference"), REFERENCES, ids=lambda one: one if isinstance(one, str) else ""
)
def test_metrics_equal_those_of_scikit_learn_and_ogb(metric, data, name, reference):
    prediction, target = data()
    found = in_parts(copy.deepcopy(metric), prediction, target)
    assert found[name] == pytest.approx(float(reference(prediction, target)), abs=1e-12)
    assert set(found) == set(metric.names)


THREE_LABELS = partial(labels_with_gaps, 150, 3)
OF_TARGETS = [
    ("regression", "scores", "mae", targets, sklearn.mean_absolute_error),
    ("regression", "scores", "r2", targets, sklearn.r2_score),
    ("multilabel", "scores", "accuracy", THREE_LABELS, lambda t, p: sklearn.accuracy_score(t, p > 0)),
    ("multilabel", "ranks", "auc", THREE_LABELS, sklearn.roc_auc_score),
    ("multilabel", "ranks", "ap", THREE_LABELS, sklearn.average_precision_score),
]


@pytest.mark.parametrize(("kind", "group", "name", "data", "score"), OF_TARGETS, ids=lambda one: str(one)[:10])
def test_the_chosen_metric_is_computed_of_each_target(kind, group, name, data, score):
    prediction, target = data()
    metric = metric_of(kind, 3, group, best=name)
    found = in_parts(metric, prediction, target)
    assert set(found) == set(metric.names)
    for i, (p, t) in enumerate(zip(prediction.T, target.T)):
        if name in ("auc", "ap") and i == 2:  # without positives
            assert np.isnan(found[f"{name}/{i}"])
        else:
            assert found[f"{name}/{i}"] == pytest.approx(float(of_known(score)(p, t)), abs=1e-12)
    assert metric_names(Task("graph", kind, 1), name) == metric_names(Task("graph", kind, 50), name)  # one, or too many


def test_without_positives_there_is_no_area():
    assert np.isnan(in_parts(metric_of("binary", group="ranks"), torch.randn(4), torch.zeros(4))["auc"])


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
        inverse = [0.0] * (not links)
        for start, end in links:
            skipped = {end, *(j for i, j in links if i == start and mode > 0), *([start] if mode == 2 else [])}
            rivals = score[start, [j for j in range(graph.num_nodes) if j not in skipped]]
            own = score[start, end]
            inverse.append(1 / (1 + float((rivals > own).sum() + (rivals == own).sum() / 2)))
        values.append(np.mean(inverse))
    return values


def add_links(metric, graphs):
    batch = Batch.from_data_list(graphs)
    pairs = candidates(batch)
    score = (batch.x[pairs.edge_index[0]] * batch.x[pairs.edge_index[1]]).sum(1)
    metric.update(score, pairs)


def test_link_ranks_equal_the_definition():
    graphs = link_graphs()
    metric = metric_of("binary", group="links", ranked=True)
    batches = [graphs[:3], graphs[3:]]
    for batch in batches:
        add_links(metric, batch)
    values = [float(metric.compute()[name]) for name in ("mrr", "mrr_filt", "mrr_filt_self")]
    means = [np.mean([reference_ranks(g) for g in batch], axis=0) for batch in batches]
    edges = [sum(g.edge_label.numel() for g in batch) for batch in batches]
    assert values == pytest.approx(list(np.average(means, axis=0, weights=edges)))
    assert values[0] < values[1] <= values[2]


def test_link_ranks_equal_ogb_on_one_graph():
    evaluator = pytest.importorskip("ogb.linkproppred").Evaluator("ogbl-citation2")
    graph = link_graphs()[0]
    score = graph.x @ graph.x.T
    start, end = graph.edge_label_index[:, graph.edge_label == 1]
    rivals = torch.stack([score[s][torch.arange(6) != e] for s, e in zip(start.tolist(), end.tolist())])
    expected = evaluator.eval({"y_pred_pos": score[start, end], "y_pred_neg": rivals})
    metric = metric_of("binary", group="links", ranked=True)
    add_links(metric, [graph])
    values = metric.compute()
    for name in ("mrr", "hits@1", "hits@3", "hits@10"):
        assert float(values[name]) == pytest.approx(float(expected[f"{name}_list"].mean())), name


def test_words_are_compared_as_sets_over_batches():
    pytest.importorskip("ogb")
    metric = metric_of("subtoken", 5, "words", vocabulary=("get", "set", "name", "__UNK__", "__EOS__"))
    guess = torch.tensor([[0, 2, 4, 1, 1], [1, 1, 3, 4, 4], [4, 0, 0, 0, 0]])  # get name, set set unknown, nothing
    logits = torch.nn.functional.one_hot(guess, 5).float()
    metric.update(logits[:1], None, Data(words=[["get", "name"]]))
    metric.update(logits[1:], None, Data(words=[["set", "rare"], ["get"]]))
    assert float(metric.compute()["f1"]) == pytest.approx((1 + 1 / 2 + 0) / 3)


def test_parts_of_shapes():
    metric = metric_of("multiclass", 4, "parts", part_labels=((0, 1), (2, 3)))
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
    metric = metric_of("regression", group="loss")
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
    built, n, found = build_metrics(task, "auc"), 6, []
    built["loss"].update(torch.tensor(0.5), 1)
    prediction = torch.randn(n, task.num_outputs) if task.kind != "binary" else torch.randn(n)
    target = torch.arange(n) % 2
    if task.kind in ("multilabel", "regression"):
        target = target.float().unsqueeze(1).expand_as(prediction)
    for group, metric in built.items():
        if group == "links":
            add_links(metric, link_graphs())
        elif group != "loss":
            metric.update(prediction, target, Data(batch=torch.arange(n), category=torch.zeros(n, dtype=torch.long)))
        found += list(metric.compute())
    assert sorted(metric_names(task, "auc")) == sorted(found)


def test_ranks_among_own_negatives_are_those_of_ogb():
    evaluate = pytest.importorskip("ogb.linkproppred").Evaluator(name="ogbl-citation2").eval
    positive, negative = torch.randn(7).round(decimals=1), torch.randn(7, 20).round(decimals=1)  # with ties
    wanted = evaluate({"y_pred_pos": positive, "y_pred_neg": negative})["mrr_list"].mean()
    metric = build_metrics(Task("edge", "binary", 1, own_negatives=True))["hits"]
    metric.update(torch.cat([positive, negative.flatten()]), torch.tensor([1.0] * 7 + [0.0] * 140))
    torch.testing.assert_close(metric.compute()["mrr"], wanted.double())
