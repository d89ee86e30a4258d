import pytest
import torch

from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.graphgps.model import build_model
from pyg_topomask.run.graphgps.parts import OPTIMIZERS, build_optimizer, build_scheduler

PLAIN = {"dataset": {"format": "PyG-MotifDataset", "name": "circle"}}


def rates(overrides, losses):
    """Learning rate of each epoch; ``losses`` are the validation losses."""
    config = load(PLAIN, ["optim.base_lr=2", "optim.optimizer=sgd", *overrides.split()]).config
    optimizer = build_optimizer(config, torch.nn.Linear(2, 1))
    scheduler = build_scheduler(config, optimizer)
    found = []
    for loss in losses:
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            scheduler.step(loss)
        elif scheduler is not None:
            scheduler.step()
    return found


WARMUP = "with_warmup optim.num_warmup_epochs=2 optim.max_epoch=6"
PLATEAU = "optim.reduce_factor=0.5 optim.lr_decay=0.5 optim.schedule_patience"
RATES = [
    ("none", range(3), [2, 2, 2]),
    ("cos optim.max_epoch=4", range(5), [2, 2 * 0.8535534, 1, 0.2928932, 0]),
    ("step optim.steps=[1,3] optim.lr_decay=0.5", range(4), [2, 1, 1, 0.5]),
    ("cosine_with_warmup optim.num_warmup_epochs=10 optim.max_epoch=2", range(3), [2e-6, 0.2, 0.4]),  # only speeds up
    (f"cosine_{WARMUP}", range(7), [2e-6, 1, 2, 2 * 0.8535534, 1, 0.2928932, 0]),
    (f"linear_{WARMUP}", range(7), [2e-6, 1, 2, 1.5, 1, 0.5, 0]),
    (f"polynomial_{WARMUP}", range(7), [2e-6, 1, *(1e-7 + (2 - 1e-7) * x for x in (1, 0.75, 0.5, 0.25, 0))]),
    (f"reduce_on_plateau {PLATEAU}=1 optim.min_lr=0.75", [3, 2, 2, 2, 2, 2, 2], [2, 2, 2, 2, 1, 1, 0.75]),
    (f"plateau {PLATEAU}=0", [3, 3, 3], [2, 2, 1]),
]


@pytest.mark.parametrize(("settings", "losses", "expected"), RATES)
def test_learning_rates(settings, losses, expected):
    assert rates(f"optim.scheduler={settings}", losses) == pytest.approx(expected, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    config = load(PLAIN, [f"optim.optimizer={name}", "optim.base_lr=0.5", "optim.weight_decay=0.1"]).config
    optimizer = build_optimizer(config, torch.nn.Linear(2, 1))
    assert type(optimizer) is OPTIMIZERS[name]
    assert (optimizer.defaults["lr"], optimizer.defaults["weight_decay"]) == (0.5, 0.1)
    assert optimizer.defaults.get("momentum", 0.9) == 0.9


@pytest.mark.parametrize(
    ("layer_type", "settings", "rates", "decays"),
    [
        ("GCN+GRF", [], [0.5, 12.5], [0.1, 0]),
        ("GCN+Masked", ["topomask.mask=[none,hop]", "topomask.mask_lr=2"], [0.5, 1], [0.1, 0]),
        ("GCN+Masked", ["topomask.mask=hop", "topomask.mask_lr=null"], [0.5], [0.1]),
        ("GCN+Linear", [], [0.5], [0.1]),
        ("GCN+GKAT", [], [0.5], [0.1]),
    ],
)
def test_masks_learn_at_their_own_rate(layer_type, settings, rates, decays):
    given = [f"gt.layer_type={layer_type}", "optim.base_lr=0.5", "optim.weight_decay=0.1", *settings]
    config = load(PLAIN, given).config
    model = build_model(config, 3, 2, 0, "graph")
    model.head.requires_grad_(False)
    groups = build_optimizer(config, model).param_groups
    assert ([group["lr"] for group in groups], [group["weight_decay"] for group in groups]) == (rates, decays)
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    assert {id(parameter) for group in groups for parameter in group["params"]} == trained
