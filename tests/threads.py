"""Results on several numbers of threads."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pyg_topomask.limits import limits


def assert_threads_change_nothing(run):
    """``run()`` gives equal tensors on 1, 2 and 5 threads, however little there is to do."""
    before, found = torch.get_num_threads(), []
    try:
        with limits.override(thread_work=0):
            for number in (1, 2, 5):
                torch.set_num_threads(number)
                found.append(run())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(x, y) for other in found[1:] for x, y in zip(other, found[0], strict=True))


def assert_repeats(run):
    """``run()`` gives equal tensors twice on 1, 2 and 5 threads each: matrix products of torch depend on the number."""
    before = torch.get_num_threads()
    try:
        for number in (1, 2, 5):
            torch.set_num_threads(number)
            assert all(map(torch.equal, run(), run()))
    finally:
        torch.set_num_threads(before)


class NoRacingSums(TorchDispatchMode):
    """Refuses the one operation of torch that adds float32 numbers in any order: sums at an index that repeats.

    It is the gradient of ``x[index]``; those of ``index_select`` and ``gather`` add in order. A few calls that happen
    to agree would hide it.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        accumulates = "index_put" in func.name() and len(args) > 3 and args[3]
        index = [part for part in args[1] if part is not None] if accumulates else []
        if index and not any(part.dtype == torch.bool for part in index):  # a mask names each place once
            place = torch.stack(torch.broadcast_tensors(*index)).flatten(1)
            assert place.unique(dim=1).size(1) == place.size(1), f"{func} adds in any order"
        return func(*args, **(kwargs or {}))
