import pytest
import torch
from torch.nn import functional
from torch_geometric.data import Data

from pyg_topomask.run.errors import RunError
from pyg_topomask.run.task import Task, check_targets, classification
from pyg_topomask.run.training.losses import loss_problem, task_loss

MULTI, BINARY = classification("node", 4), classification("node", 2)
NAN = float("nan")


def test_multilabel_leaves_out_what_is_unknown():
    task = Task("graph", "multilabel", 2)
    logits = torch.tensor([[1.0, -2.0], [0.5, 3.0]], requires_grad=True)
    loss = task_loss("cross_entropy", logits, torch.tensor([[1.0, NAN], [NAN, 0.0]]), task)
    loss.backward()
    expected = (functional.softplus(torch.tensor(-1.0)) + functional.softplus(torch.tensor(3.0))) / 2
    torch.testing.assert_close(loss.detach(), expected)
    assert logits.grad[0, 1] == logits.grad[1, 0] == 0
    assert (logits.grad != 0).sum() == 2


def test_regression_leaves_out_what_is_unknown():
    task = Task("graph", "regression", 2)
    prediction, target = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.0, NAN], [3.5, 4.0]])
    assert float(task_loss("l1", prediction, target, task)) == pytest.approx(0.5)
    assert float(task_loss("mse", prediction, target, task)) == pytest.approx(1.25 / 3)
    assert float(task_loss("smoothl1", prediction, target, task)) == pytest.approx((0.5 + 0.125) / 3)


def test_weighted_cross_entropy_from_its_definition():
    logits, target = torch.randn(9, 4, dtype=torch.double), torch.tensor([0, 0, 0, 0, 0, 1, 1, 3, 3])
    weight = torch.tensor([4 / 9, 7 / 9, 0.0, 7 / 9], dtype=torch.double)
    each = -logits.log_softmax(1)[torch.arange(9), target]
    expected = (weight[target] * each).sum() / weight[target].sum()
    torch.testing.assert_close(task_loss("weighted_cross_entropy", logits, target, MULTI), expected)
    binary, truth = torch.randn(9, dtype=torch.double), (target > 0).double()
    each = functional.softplus(torch.where(truth == 1, -binary, binary))
    expected = (torch.where(truth == 1, 5 / 9, 4 / 9) * each).mean()
    torch.testing.assert_close(task_loss("weighted_cross_entropy", binary, truth, BINARY), expected)


def test_batches_of_one_class_and_without_targets_have_a_finite_gradient():
    for target in (torch.zeros(3, dtype=torch.long), torch.zeros(0, dtype=torch.long)):
        logits = torch.randn(target.numel(), 4, requires_grad=True)
        loss = task_loss("weighted_cross_entropy", logits, target, MULTI)
        loss.backward()
        assert float(loss.detach()) == 0
        assert torch.equal(logits.grad, torch.zeros_like(logits))
    task = Task("graph", "regression", 1)
    prediction = torch.ones(2, 1, requires_grad=True)
    task_loss("l1", prediction, torch.full((2, 1), NAN), task).backward()
    assert torch.equal(prediction.grad, torch.zeros(2, 1))


def test_sequences_are_a_mean_over_places():
    logits, target = torch.randn(3, 2, 5), torch.randint(5, (3, 2))
    expected = sum(functional.cross_entropy(logits[:, place], target[:, place]) for place in range(2)) / 2
    torch.testing.assert_close(task_loss("cross_entropy", logits, target, Task("graph", "subtoken", 5)), expected)


@pytest.mark.parametrize(
    ("name", "task", "text"),
    [
        ("cross_entropy", Task("graph", "regression", 1), "use l1 or smoothl1 or mse"),
        ("l1", MULTI, "l1 needs numbers, and the task is multiclass; use cross_entropy or weighted_cross_entropy"),
        ("mse", BINARY, "mse needs numbers, and the task is binary"),
        ("l1", Task("graph", "subtoken", 3), "l1 needs numbers, and the task is subtoken; use cross_entropy"),
        ("weighted_cross_entropy", Task("graph", "multilabel", 3), "needs classes, and the task is multilabel"),
    ],
)
def test_losses_that_do_not_fit(name, task, text):
    assert text in loss_problem(name, task)


@pytest.mark.parametrize(
    ("task", "y", "text"),
    [
        (classification("graph", 3), torch.tensor([3]), r"'y' must hold a class from 0 to 2 for each graph .* as 3\)"),
        (classification("graph", 3), torch.tensor([0, 1]), r"got 2 .*: one for each node needs .*; several labels"),
        (BINARY, torch.tensor([0.0, 0.5]), r"as 0, 0\.5\)\. .*numbers need dataset\.task_type regression"),
        (Task("graph", "multilabel", 3), torch.zeros(1, 2), r"3 numbers from 0 to 1 .*3, got 2 of .* as 0, 0\)$"),
        (Task("graph", "multilabel", 2), torch.tensor([[torch.nan, 5.0]]), r"from 0 to 1 .* as nan, 5\)$"),
    ],
)
def test_targets_that_do_not_fit(task, y, text):
    with pytest.raises(RunError, match=text):
        check_targets(task, Data(x=torch.zeros(2, 1), edge_index=torch.zeros(2, 0, dtype=torch.long), y=y))
