"""Initialising parameters again, also those of modules without ``reset_parameters``."""

from torch.nn import Module


class Resettable(Module):
    """A module whose ``reset_parameters`` initialises its parts; one with parameters of its own extends it."""

    def reset_parameters(self) -> None:
        """Initialise all parameters again, from torch's default generator."""
        for part in self.children():
            reset(part)


def reset(module: Module) -> None:
    """Initialise all parameters again.

    Torch's ``MultiheadAttention`` and PyG's ``PerformerAttention`` have ``_reset_parameters`` alone, which leaves out
    some of their parts.
    """
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()  # type: ignore[operator]
        return
    for part in module.children():
        reset(part)
    getattr(module, "_reset_parameters", lambda: None)()
