"""Errors of the HDF5 library in damaged files are reported with the file, and never as an internal error."""

from __future__ import annotations

import random
import shutil

import pytest
from raw.minari import SPACES, episodes, write

from datasets_rl import downloading
from datasets_rl.errors import DatasetsRLError
from datasets_rl.settings import Settings

NAME = "test/things/damaged-v3"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A dataset written by Minari."""
    folder = tmp_path_factory.mktemp("cache")
    write(folder, NAME, episodes(SPACES["box"]), space=SPACES["box"], data_format="hdf5")
    return folder / NAME


# HDF5 fails at 12 and 105 with a RuntimeError while the links of a group are read.
@pytest.mark.parametrize("seed", [12, 105, *range(1, 6)])
def test_a_damaged_file_is_refused_with_its_name_or_read_like_the_intact_one(written, tmp_path, seed):
    # HDF5 shares cached metadata among all handles of the same path.
    folder = tmp_path / "copy"
    shutil.copytree(written, folder)
    file = next(folder.rglob("main_data.hdf5"))
    chance, damaged = random.Random(seed), bytearray(file.read_bytes())
    for _ in range(3):
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
    file.write_bytes(damaged)
    try:
        downloading.download(f"minari/{NAME}", from_local=folder, settings=Settings(home=tmp_path, progress=False))
    except DatasetsRLError as error:
        assert f"minari/{NAME}" in str(error) or "main_data.hdf5" in str(error)  # noqa: PT017 -- both outcomes are right
