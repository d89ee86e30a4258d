"""A search for settings with Optuna: trials that fall behind are stopped early."""

import optuna
from lightning.pytorch import Callback

from pyg_topomask.run import graphgps

config = {"dataset": {"format": "PyG-MotifDataset", "name": "circle", "num_graphs": 400}, "optim": {"max_epoch": 20}}


class Prune(Callback):
    def __init__(self, trial):
        self.trial = trial

    def on_train_epoch_end(self, trainer, module):
        self.trial.report(float(trainer.callback_metrics["val_accuracy"]), trainer.current_epoch)
        if self.trial.should_prune():
            raise optuna.TrialPruned


def validation_accuracy(trial):
    rate, layers = trial.suggest_float("rate", 1e-4, 1e-1, log=True), trial.suggest_int("layers", 1, 4)
    settings = [f"optim.base_lr={rate}", f"gt.layers={layers}", f"name_tag={rate}-{layers}"]  # a folder for each trial
    summary = graphgps.read(config, settings).run("sweep", callbacks=[Prune(trial)])
    return summary["metrics"]["val_accuracy"]["mean"]


study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(n_startup_trials=3))
study.optimize(validation_accuracy, n_trials=20)
print(study.best_params, study.best_value)
