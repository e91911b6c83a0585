"""The contract of export formats, for every format of the package."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import h5py
import numpy as np
import pytest
from tensordict import TensorDict

from datasets_rl.exporting import FORMATS
from datasets_rl.exporting.formats import get_format
from datasets_rl.testing import ExportCase, ExportContract

REWARD, ACTION = ("next", "reward"), ("action",)


def of_npz(out):
    files = [np.load(path) for path in sorted(out.glob("*.npz"))]
    return {key: np.concatenate([file[".".join(key)] for file in files]) for key in (ACTION, REWARD)}


def of_hdf5(out):
    with h5py.File(out / "data.hdf5") as file:
        return {key: file["/".join(key)][()] for key in (ACTION, REWARD)}


def of_d4rl(out):
    with h5py.File(out) as file:
        return {ACTION: file["actions"][()], REWARD: file["rewards"][()]}


def of_torchrl(out):
    data = TensorDict.load_memmap(out)
    return {key: data[key].numpy() for key in (ACTION, REWARD)}


READERS = {"npz": of_npz, "hdf5": of_hdf5, "d4rl": of_d4rl, "torchrl": of_torchrl}
"""The formats that need no library of another project; the tests of the others are in `tests/exporting`."""


class TestFormats(ExportContract):
    first: ClassVar = {"test_compressed_images_are_exported_as_pixels_are": pytest.mark.first(1, of="case")}
    cases: ClassVar = {name: ExportCase(partial(get_format, name), READERS.get(name)) for name in FORMATS}
