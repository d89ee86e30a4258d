"""The comparison of masks on molecules: equal sizes, and a target that is what it says."""

import pytest
import torch
from torch_geometric.data import Data


def test_rows_have_equally_many_parameters(script):
    for method in script.METHODS:
        model = script.model_of(method, script.width_of(method, 1), 1)
        size = sum(parameter.numel() for parameter in model.parameters())
        assert size == pytest.approx(script.PARAMETERS, rel=0.06), method


def test_autocorrelations_are_sums_over_pairs_at_a_distance(script):
    """A path of oxygen, carbon, fluorine and nitrogen: each pair counts in both orders."""
    edge = torch.tensor([[0, 1, 2], [1, 2, 3]])
    kinds = torch.eye(13)[[2, 0, 8, 5]]
    data = Data(x=kinds, edge_index=torch.cat([edge, edge.flip(0)], 1), num_nodes=4)
    found = script.autocorrelations(data)
    wanted = torch.tensor([1.43 * 0.49, 0.89 * 1.43, 0.89 * 0.49, 0, 0, 0, 0, 0]) * 2
    torch.testing.assert_close(found, wanted)


def test_rows_of_one_seed_see_the_same_order_of_batches(scripts):
    """Whatever the models draw; another seed gives another order."""
    fitting = scripts("_fitting")
    edge = torch.tensor([[0, 1], [1, 0]])
    graphs = [Data(torch.ones(2, 1), edge, y=torch.tensor([[float(number)]]), num_nodes=2) for number in range(8)]

    def seen(seed, width):
        targets = []

        def loss(found, wanted):
            if found.requires_grad:
                targets.extend(wanted.flatten().tolist())
            return (found - wanted).square().mean()

        fitting.begin(seed)
        model = fitting.GPSModel(1, width, 1, 1, lambda _: fitting.gin(width), None, pool="add")
        parts = {"train": graphs, "val": graphs, "test": graphs}
        fitting.fit_graphs(model, parts, loss, loss, 4, epochs=2, rate=1e-3, decay=0.0)
        return targets

    assert seen(1, 4) == seen(1, 8) != seen(2, 4)


def test_fresh_seeds_and_longer_schedules_are_rows_of_their_own(scripts, monkeypatch):
    script, found = scripts("moses"), []
    assert script.layers_and_epochs("RWSE + GINE + none, 120 epochs") == ("RWSE + GINE + none", 120)
    assert script.layers_and_epochs("GRF, f = 1") == ("GRF, f = 1", 30)
    assert all(script.absent("logP", method) for method in script._GINE[1:])
    monkeypatch.setattr(script, "parts", lambda *_: {"train": [Data(y=torch.zeros(1, 1))]})
    monkeypatch.setattr(script, "begin", found.append)
    monkeypatch.setattr(script.transforms, "that_add", lambda *_, seed, **__: lambda part: part)
    monkeypatch.setattr(script, "fit_graphs", lambda *_, epochs, **__: found.append(epochs) or {})
    for dataset, method in (("logP", "GINE + none"), (script.LOGP, "GINE + none, 60 epochs")):
        script.make_run({"dataset": dataset, "method": method}, 2, 30, script.Path("out"))
    assert found == [2, 30, 12, 60]
