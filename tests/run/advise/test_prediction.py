import pytest

from pyg_topomask.run.advise.fit import estimate, fitted
from pyg_topomask.run.advise.prediction import predict
from pyg_topomask.run.advise.sample import Epoch, Size
from pyg_topomask.run.advise.stopwatch import Seconds, Step
from pyg_topomask.run.advise.trial import Trial

SIZES = [Size(10, 100), Size(20, 300), Size(40, 1600), Size(80, 1800)]


def cost(size):
    return 0.5 + 0.02 * size.nodes + 0.001 * size.pairs


def test_a_cost_of_that_form_is_found():
    others = [Size(160, 12_800), Size(5, 25)]
    assert fitted([(size, cost(size)) for size in SIZES], others) == pytest.approx([cost(size) for size in others])


def test_one_size_grows_with_pairs_and_falls_with_nodes():
    points = [(Size(10, 100), 2.0)]
    assert fitted(points, [Size(10, 100), Size(20, 400), Size(5, 25)]) == pytest.approx([2.0, 8.0, 0.5])


def test_values_never_fall_below_zero():
    assert estimate([(Size(10, 100), 1.0), (Size(20, 400), 0.9), (Size(40, 1600), 1.1)], Size(1, 1)) >= 0


def test_an_epoch_is_the_sum_of_its_steps_and_what_it_adds():
    steps = [Step(size, Seconds(cost(size), 2 * cost(size))) for size in SIZES]
    evaluated = [Step(size, Seconds(size.nodes, size.nodes)) for size in SIZES[:2]]
    trial = Trial(train=steps, val=evaluated, fixed=Seconds(3.0, 1.0), prepare=Seconds(0.1, 0.2), stored=2.0**20)
    trial.memory, trial.is_full = [(SIZES[-1], 7.0)], True
    epoch = Epoch([Size(30, 900), Size(60, 1700)], [Size(50, 500)], num_nodes=200, evaluated_nodes=50)
    found = predict(trial, epoch, SIZES[-1], 2.0**20, eval_period=5)
    wall = cost(Size(30, 900)) + cost(Size(60, 1700)) + 50 / 5 + 3
    assert found.epoch.wall == pytest.approx(wall)
    assert found.epoch.processor == pytest.approx(2 * (wall - 13) + 11)
    assert found.prepare == pytest.approx((20, 40))
    assert found.step_mib == 7.0
    assert found.stored_mib == pytest.approx(200 + 2 * 50)
    assert not found.is_extrapolated


def test_parts_of_a_graph_are_counted():
    trial = Trial(train=[Step(Size(5, 25), Seconds(2.0, 1.0)), Step(Size(7, 49), Seconds(4.0, 1.0))], num_steps=10)
    found = predict(trial, Epoch([], [], 100, 0), Size(100, 10_000), 0.0)
    assert found.epoch == pytest.approx((30, 10))
    assert found.step_mib is None
    assert found.is_extrapolated
    trial.val, trial.num_val_steps = [Step(Size(5, 25), Seconds(1.0, 2.0))], 4
    found = predict(trial, Epoch([], [Size(100, 10_000)], 100, 0), Size(100, 10_000), 0.0, eval_period=2)
    assert found.epoch == pytest.approx((30 + 4 / 2, 10 + 8 / 2))
