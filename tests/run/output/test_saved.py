"""What differs between the configs of two runs."""

from pyg_topomask.run.output.saved import differences


def test_only_the_attention_differs_if_its_keys_follow_from_it():
    """A run without walks has their keys at defaults, which nobody has set."""
    here = {"gt.layer_type": "GCN+Linear", "topomask.mask": "none", "topomask.num_walks": 16, "optim.base_lr": 0.1}
    there = here | {"gt.layer_type": "GCN+GRF", "topomask.num_walks": 8}
    assert differences(here, there) == ["gt.layer_type is GCN+GRF there and GCN+Linear here"]
    assert differences(here, here | {"optim.base_lr": 0.2}) == ["optim.base_lr is 0.2 there and 0.1 here"]
