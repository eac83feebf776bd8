"""benchmarks/steps/operations.py: what counts as an operation, and the claim for small models of
each head.
"""

import doctest
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from benchmarks.steps import operations
from benchmarks.timed_steps import Setting

TABLES = Path(__file__).parent / "tables"


def test_operations_doctests_pass():
    assert doctest.testmod(operations).failed == 0


def test_operations_are_counted_as_on_a_gpu():
    """No views, no parts of a kernel for the CPU, and lists of tensors once."""
    x, weights = torch.ones(2, 3), [torch.ones(2), torch.ones(3)]
    with profile(activities=[ProfilerActivity.CPU]) as recorder:
        (x.view(3, 2).T + 0.5).reshape(-1)  # adds, and copies because of T
        torch._foreach_mul_(weights, 2.0)
        torch.zeros(3).to(torch.float32)  # fills
        F.batch_norm(x, None, None, training=True)
        x.index_put_((torch.tensor([0, 0]),), torch.ones(2, 3), accumulate=True)
    names = [name for _, name in operations.operations(operations.roots(recorder))]
    assert [name for name in names if name not in ("fill_", "zero_", "copy_", "clone")] == [
        "add",
        "_foreach_mul_",
        "native_batch_norm",
        "_index_put_impl_",
    ]


# Operations of the loss when each level was computed by itself: 641, 480, 391 and 757 for full
# models. Few of them depend on the version of torch.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "most_of_loss", "most_sorted"),
    [("tiny", 300, 6), ("decoupled", 340, 0), ("distance", 350, 0), ("dual", 620, 0)],
)
def test_losses_need_few_operations_and_sorted_writes(table, most_of_loss, most_sorted):
    setting = Setting(cfg=str(TABLES / f"{table}.yaml"), img=64, batch=2, amp="fp32")
    each, sorted_writes, waits = operations.counted(setting)
    assert 100 < each["loss"] <= most_of_loss
    assert sorted_writes["loss"] == 0
    assert sorted_writes["backward"] <= most_sorted
    assert not waits
