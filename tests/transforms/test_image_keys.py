"""Transforms of images whose keys the data does not have."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from datasets_rl.errors import UnknownKeyError
from datasets_rl.transforms import Resize


def test_a_missing_key_of_images_is_answered_with_the_images_of_the_batch():
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    data = {"observation": {"camera": images, "state": torch.zeros(2, 4)}, "mask": torch.zeros(2, 4, dtype=torch.uint8)}

    with pytest.raises(UnknownKeyError, match="no key 'pixels'") as refused:
        Resize(4, 4)(TensorDict(data, [2]))

    assert "name the images: in_keys=[('observation', 'camera')]" in str(refused.value)
