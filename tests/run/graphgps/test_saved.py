"""What differs between the configs of two runs."""

import pytest

from pyg_topomask.nn import ATTENTION, PrimphormerAttention
from pyg_topomask.run import check_config
from pyg_topomask.run.graphgps.attentions import argument_keys
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.graphgps.saved import compared, write_config
from pyg_topomask.run.output.results import differences


def test_only_the_attention_differs_if_its_keys_follow_from_it():
    """A run without walks has their keys at defaults, which nobody has set."""
    here = {"gt.layer_type": "GCN+Linear", "topomask.mask": "none", "topomask.num_walks": 16, "optim.base_lr": 0.1}
    there = here | {"gt.layer_type": "GCN+GRF", "topomask.num_walks": 8}
    assert differences(here, there) == ["gt.layer_type is GCN+GRF there and GCN+Linear here"]
    assert differences(here, here | {"optim.base_lr": 0.2}) == ["optim.base_lr is 0.2 there and 0.1 here"]


def test_a_key_that_is_not_given_differs_from_its_default(tiny):
    """Each attention may have a default of its own: GKAT's kernel is softmax_rf, that of the key relu."""
    del tiny["topomask"]
    tiny["gt"]["layer_type"] = "GIN+GKAT"
    plain, given = (compared(load(tiny, overrides).config) for overrides in ([], ["topomask.kernel=relu"]))
    assert differences(plain, given) == ["topomask.kernel is relu there and None here"]
    assert compared(load(tiny, ["gt.layers=1"]).config) == plain  # the key's default


@pytest.mark.parametrize("layers", ["GCN+GKAT", "GCN+Masked"])
def test_keys_that_were_not_given_are_not_given_in_the_file_of_a_run(tiny, tmp_path, layers):
    tiny["gt"]["layer_type"], tiny["topomask"] = layers, {"mask": "rwgnk"} if layers == "GCN+Masked" else {}
    before = check_config(tiny)[0].config
    write_config(tmp_path / "config.yaml", before)
    after = check_config(tmp_path / "config.yaml")[0].config
    assert argument_keys(after) == argument_keys(before)
    assert compared(after) == compared(before)


def test_an_attention_may_take_its_settings_as_keywords(tiny, monkeypatch):
    class Keywords(PrimphormerAttention):
        def __init__(self, channels, heads=1, **settings):
            super().__init__(channels, heads, **settings)

    monkeypatch.setitem(ATTENTION, "Keywords", Keywords)
    del tiny["topomask"]
    tiny["gt"]["layer_type"] = "GIN+Keywords"
    check_config(tiny)
