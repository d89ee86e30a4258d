import pytest

from pyg_topomask.run.advise.sample import Epoch, Size, estimate
from pyg_topomask.run.advise.trial import Step, Trial, predict

SIZES = [Size(10, 100), Size(20, 300), Size(40, 1600), Size(80, 1800)]


def cost(size):
    return 0.5 + 0.02 * size.nodes + 0.001 * size.pairs


@pytest.mark.parametrize("size", [Size(160, 12_800), Size(5, 25)])
def test_a_cost_of_that_form_is_found(size):
    assert estimate([(size, cost(size)) for size in SIZES], size) == pytest.approx(cost(size))


def test_one_size_grows_with_pairs_and_falls_with_nodes():
    points, sizes = [(Size(10, 100), 2.0)], [Size(10, 100), Size(20, 400), Size(5, 25)]
    assert [estimate(points, size) for size in sizes] == pytest.approx([2.0, 8.0, 0.5])


def test_an_epoch_is_the_sum_of_its_steps_and_what_it_adds():
    steps = [Step(size, cost(size)) for size in SIZES]
    evaluated = [Step(size, size.nodes) for size in SIZES[:2]]
    trial = Trial(steps, evaluated, fixed=3.0, prepare=0.1, stored=(2.0**20, 2.0**20))
    trial.step_mib = 7.0
    epoch = Epoch([Size(30, 900), Size(60, 1700)], [Size(50, 500)], num_nodes=200, evaluated_nodes=50)
    found = predict(trial, epoch, eval_period=5)
    assert found.epoch_s == pytest.approx(cost(Size(30, 900)) + cost(Size(60, 1700)) + 50 / 5 + 3)
    assert found.prepare_s == pytest.approx(20)
    assert found.step_mib == 7.0
    assert found.stored_mib == pytest.approx(200 + 2 * 50)


def test_parts_of_a_graph_are_counted():
    trial = Trial([Step(Size(5, 25), 2.0), Step(Size(7, 49), 4.0)], [Step(Size(5, 25), 1.0)])
    trial.parts = 10, 4
    whole = [Size(100, 10_000)]
    found = predict(trial, Epoch(whole, whole, 100, 0), eval_period=2)
    assert found.epoch_s == pytest.approx(30 + 4 / 2)
    assert found.step_mib is None
