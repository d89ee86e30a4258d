import pytest

from pyg_topomask.limits import Limits, limits


def test_limits_are_put_back():
    before = Limits(**vars(limits))
    with limits.override(slice_numbers=1, thread_work=0):
        assert (limits.slice_numbers, limits.thread_work) == (1, 0)
        with pytest.raises(ZeroDivisionError), limits.override(entries=1):
            _ = 1 / 0
        assert (limits.slice_numbers, limits.entries) == (1, before.entries)
    assert limits == before


def test_unknown_limits_are_refused():
    with pytest.raises(TypeError, match="there is no limit most_pairs; there are pairs_at_once"):
        limits.override(most_pairs=1).__enter__()
