"""Damaged upstream files give the dataset of the intact file or a documented error, and never a traceback."""

from __future__ import annotations

import random

import numpy as np
import pytest
from raw.case import cases_of_sources

from datasets_rl import Selection, downloading, verification
from datasets_rl.errors import ConversionError, FetchError, IntegrityError
from datasets_rl.fetch.partial_download import digest_file
from datasets_rl.settings import Settings

CASES = {f"{name}-{number}": case for name, number, case in cases_of_sources() if name != "demo"}
CHECKED = ("atari_dqn-0", "gen_dgrl-0", "local-0", "local-3", "vd4rl-0")
"""Every byte of these files is covered by a checksum: CRC-32 of gzip and zip, CRC-64 of xz."""
FEW = 2


def tree(case, folder, *, stored):
    """Write the raw files of the case; with `stored`, members of npz files are not compressed."""
    folder.mkdir()
    case.write(folder)
    for path in folder.rglob("*.npz") if stored else ():
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        np.savez(path, **arrays)
    return folder


def converted(case, folder, home):
    """Convert and verify the files; return the digests of the stored dataset."""
    settings = Settings(home=home, progress=False, retries=0)
    made = downloading.download(
        case.id, from_local=folder, hash_check=False, settings=settings, selection=Selection(options=dict(case.options))
    )
    verification.verify(made, deep=True, settings=settings)
    return {path.name: digest_file(path).hexdigest() for path in made.rglob("*.npy")}


def damage(path, dice):
    """Change a byte or several bytes of a file, or truncate it; return a function that restores it."""
    before = path.read_bytes()
    data = bytearray(before)
    kind = dice.randrange(4)
    at = dice.randrange(len(data))
    if kind == 0:
        data[at] ^= 1 << dice.randrange(8)
    elif kind == 1:
        for _ in range(4):
            data[dice.randrange(len(data))] = dice.randrange(256)
    elif kind == 2:
        data[at : at + 16] = dice.randbytes(len(data[at : at + 16]))
    else:
        del data[at:]
    path.write_bytes(data)
    return before


def outcomes(name, tmp_path, seeds, *, stored=False):
    """Damage a file for each seed; fail unless the result is a documented error or the dataset of the intact file."""
    case = CASES[name]
    folder = tree(case, tmp_path / "tree", stored=stored)
    whole = converted(case, folder, tmp_path / "whole")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    data = [path for path in files if path.suffix not in {".json", ".toml", ".txt", ".md"}]
    for seed in seeds:
        dice = random.Random(seed)
        path = dice.choice(data)
        before = damage(path, dice)
        try:
            got = converted(case, folder, tmp_path / f"home{seed}")
        except (ConversionError, FetchError, IntegrityError):
            got = whole
        except Exception as error:
            raise AssertionError(f"seed {seed}, {path.name}: {type(error).__name__} {error}") from error
        assert name not in CHECKED or got == whole, f"seed {seed}, {path.name}: other values"
        path.write_bytes(before)


@pytest.mark.first(5)
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one.endswith("-0") or one in CHECKED else pytest.mark.slow) for one in CASES]
)
def test_a_damaged_file_is_a_documented_error_or_changes_nothing(name, tmp_path):
    outcomes(name, tmp_path, range(FEW))


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["local-0", "local-3", "vd4rl-0"])
def test_damage_to_arrays_that_are_not_compressed_is_never_another_value(name, tmp_path):
    outcomes(name, tmp_path, range(FEW), stored=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_ninety_damaged_files_are_documented_errors_or_change_nothing(name, tmp_path):
    outcomes(name, tmp_path, range(1000, 1090), stored=name.startswith("local"))
