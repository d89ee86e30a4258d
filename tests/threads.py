"""Results on several numbers of threads."""

import torch

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
