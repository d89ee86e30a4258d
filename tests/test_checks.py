import warnings

import numpy as np
import pytest
import torch

from pyg_topomask import checks, nn, transforms
from pyg_topomask.testing import GRAPHS


@pytest.mark.parametrize("value", [3, np.int8(3), np.int64(3), torch.tensor(3)])
def test_integers_of_any_kind_become_pythons(value):
    assert type(checks.check_integer("size", value, 3)) is int
    walks = transforms.AddRandomWalks(value, value, seed=value)(GRAPHS["star"].clone())
    assert torch.equal(walks.walk_index, transforms.AddRandomWalks(3, 3, seed=3)(GRAPHS["star"].clone()).walk_index)
    x = torch.randn(walks.num_nodes, 6)
    for attn in (
        nn.GKATAttention(6, value, num_features=value, max_length=value, seed=value),
        nn.BigBirdAttention(6, value, block_size=value, seed=value),
        nn.PrimphormerAttention(6, value, num_virtual=value, rank=value),
    ):
        graph = transforms.AddRandomWalks(3, 3, 0.0, independent=False, seed=0)(GRAPHS["star"].clone())
        assert attn(x, graph=graph).shape == (walks.num_nodes, 6)


def test_the_message_says_what_was_wrong_and_why():
    with pytest.raises(ValueError, match=r"^'size' must be at least 3: a reason \(got 2\)$"):
        checks.check_integer("size", 2, 3, "a reason")
    with pytest.raises(TypeError, match=r"^'seed' must be an integer \(got 1\.5\)$"):
        checks.check_integer("seed", 1.5)


def test_a_cause_is_warned_of_once_under_pythons_own_filter():
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for cause in ("this test", "this test, too") * 2:
            checks.warn_once(cause, cause)
            with warnings.catch_warnings():  # after this, Python forgets what it has shown
                warnings.simplefilter("ignore")
    assert [str(warning.message) for warning in shown] == ["this test", "this test, too"]


def test_a_condition_is_checked_now_or_when_compiled_code_runs():
    true, false = torch.tensor(True), torch.tensor(False)
    assert checks.holds(true, "wrong")
    assert not checks.holds(false, "wrong")
    called = torch.compile(lambda x: 2.0 if checks.holds(x, "wrong") else x, backend="eager", fullgraph=True)
    assert called(true) == 2
    with pytest.raises(RuntimeError, match="wrong"):
        called(false)
