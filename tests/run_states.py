"""The states of two training runs, which are equal bit for bit."""

from __future__ import annotations

import torch

from datasets_rl.training import read_checkpoint


def assert_same_state(first, second):
    first, second = (read_checkpoint(out / "checkpoint.pt") for out in (first, second))
    for state in (first, second):
        for name in ("seconds", "history", "settings"):
            del state[name]
    assert_equal(first, second)


def assert_equal(first, second):
    assert type(first) is type(second)
    if isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for name in first:
            assert_equal(first[name], second[name])
    elif isinstance(first, (list, tuple)):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_equal(one, other)
    else:
        assert first == second
