"""Objects are written into the slots that the index names, in any order."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from datasets_rl import LazyMemmapStorage, LazyTensorStorage, ListStorage


@pytest.mark.parametrize("slots", [[2, 4, 3], [4, 3, 2], [3, 0, 2, 4], [2, 2]])
@pytest.mark.parametrize("kind", [ListStorage, LazyTensorStorage, LazyMemmapStorage])
def test_elements_for_free_slots_in_any_order_are_all_kept(kind, slots):
    storage = kind(5)
    make = int if kind is ListStorage else lambda number: TensorDict({"x": torch.tensor(number)}, [])

    def elements(numbers):
        made = [make(number) for number in numbers]
        return made if kind is ListStorage else torch.stack(made)

    storage.set(range(2), elements([0, 10]))
    storage.set(slots, elements([100 + slot for slot in slots]))
    found = storage.get(range(len(storage)))

    wanted = [0, 10, *[None] * (max(slots) - 1)]
    for slot in slots:
        wanted[slot] = 100 + slot
    assert (found if kind is ListStorage else found["x"].tolist()) == wanted
