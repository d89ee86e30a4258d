"""The base class of attentions, and what a subclass of few lines gets from it."""

import inspect

import pytest
import torch
from torch.nn import Linear

from pyg_topomask.nn import ATTENTION, Attention, check_input
from tests.nn.gps_cases import batch_of


class Plain(Attention):
    """Scales by a linear map."""

    def __init__(self, channels, heads=1):
        super().__init__(channels, heads)
        self.lin = Linear(channels, channels)

    def forward(self, x, batch=None, graph=None):
        check_input(x, self.channels, batch, graph)
        return self.lin(x)


def test_defaults_of_a_subclass():
    attn = Plain(8, 2)
    assert (attn.channels, attn.heads, attn.requires, attn.edge_dim, attn.auxiliary_loss) == (8, 2, (), None, None)
    before = attn.lin.weight.clone()
    attn.reset_parameters()
    assert not torch.equal(attn.lin.weight, before)
    with pytest.raises(NotImplementedError):
        Attention(8)(torch.ones(2, 8))


@pytest.mark.parametrize(
    ("x", "batch", "kind", "message"),
    [
        (
            torch.ones(4, 8),
            torch.tensor([0, 0, 0]),
            ValueError,
            r"'batch' must have shape \[4\].*got \[3\]\); is it of another batch",
        ),
        (torch.ones(4, 8), torch.zeros(4), TypeError, "'batch' must hold the integer"),
        (torch.ones(4, 9), None, ValueError, r"'x' must have shape \[N, 8\].*got \[4, 9\]"),
        (torch.ones(4, 8).long(), None, TypeError, r"floating-point tensor \(got torch.int64\)"),
        (torch.ones(4, 8) * torch.inf, None, ValueError, "NaN or infinity, first at node 0"),
        (torch.ones(4, 8) * -torch.inf, None, ValueError, "NaN or infinity, first at node 0"),
    ],
)
def test_inputs_are_checked(x, batch, kind, message):
    with pytest.raises(kind, match=message):
        Plain(8)(x, batch)


@pytest.mark.parametrize("name", ATTENTION)
def test_every_attention_is_one(name):
    cls = ATTENTION[name]
    assert issubclass(cls, Attention)
    assert "card" in vars(cls)
    assert list(inspect.signature(cls.forward).parameters)[1:4] == ["x", "batch", "graph"]
    parameters = inspect.signature(cls).parameters
    assert list(parameters)[:2] == ["channels", "heads"]
    assert set(cls.config_keys) <= set(parameters) - {"channels"}, "a row names no argument of the constructor"


def test_which_attentions_have_optional_parts():
    def having(method):
        return {name for name, cls in ATTENTION.items() if hasattr(cls, method)}

    assert having("initial_carry") == {"Exphormer", "Primphormer"}
    assert having("tie") == {"SAN", "Primphormer"}
    assert having("edge_attention") == {"GKAT"}
    assert {name for name, cls in ATTENTION.items() if cls.adds_loss} == {"Primal", "Primphormer"}


def accepting(argument):
    return [cls for cls in ATTENTION.values() if argument in inspect.signature(cls).parameters]


@pytest.mark.parametrize("cls", accepting("dropout"))
def test_dropout_acts_in_training_only(cls):
    batch = batch_of("star", "path")
    attn, plain, x = cls(8, heads=2, dropout=0.5), cls(8, heads=2), torch.randn(9, 8)
    assert not torch.equal(attn(x, batch.batch, batch), attn(x, batch.batch, batch))
    plain.load_state_dict(attn.state_dict())
    assert torch.equal(attn.eval()(x, batch.batch, batch), plain.eval()(x, batch.batch, batch))
    with pytest.raises(ValueError, match=r"\[0, 1\)|dropout"):
        cls(8, dropout=1.5)


@pytest.mark.parametrize("cls", ATTENTION.values())
def test_heads_must_divide_channels(cls):
    with pytest.raises(ValueError, match=r"divisible by 'heads' \(got 8 and 3\)"):
        cls(8, heads=3)
    with pytest.raises(ValueError, match="'heads' must be at least 1"):
        cls(8, heads=0)
