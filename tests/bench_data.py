"""What benchmarks share: timing in turns, other processes, conversions, one file as our dataset and as TorchRL's."""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from isal import igzip
from PIL import Image
from pyarrow import parquet
from raw.tfrecords import messages

from datasets_rl import Selection
from datasets_rl.downloading.run import download
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings

NAME = "halfcheetah-medium-v2"
LENGTH = 5
"""Steps of a short episode."""
CHILD = """
import importlib, pickle, sys
folders, module, name, arguments = pickle.load(sys.stdin.buffer)
sys.path[:0] = folders
pickle.dump(getattr(importlib.import_module(module), name)(*arguments), sys.stdout.buffer)
"""


def seconds(call, *, repeat=1):
    """Seconds of one call."""
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat


def compare(calls, *, rounds=60, repeat=25):
    """Return the least seconds per call of each named call over rounds in which they take turns.

    What else runs on the machine only adds to the time, and to that of some rounds only: rounds of a few milliseconds are
    seldom interrupted.
    """
    for call in calls.values():
        seconds(call, repeat=repeat)
    taken = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name].append(seconds(call, repeat=repeat))
    return {name: min(values) for name, values in taken.items()}


def run_in_child(function, *arguments):
    """Call a function of a test file, or of this one, in another process; arguments and result can be pickled."""
    file = Path(function.__code__.co_filename)
    task = pickle.dumps([[str(file.parent), str(Path(__file__).parent)], file.stem, function.__name__, arguments])
    return pickle.loads(subprocess.run([sys.executable, "-c", CHILD], input=task, stdout=-1, check=True).stdout)


def peak():
    """The most memory that this process has had, in MB; 0 where the system does not say."""
    # Not ru_maxrss: it counts what the parent held before the child's own program began.
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def size(folder):
    """Bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@dataclass(frozen=True)
class Cost:
    """What a conversion took."""

    seconds: float
    cpu: float
    """Seconds of the processors, those of readers included."""
    alone: float
    """Seconds that it takes to read the raw files with their formats' own libraries, and to digest them."""
    peak: float
    """MB over the idle process."""
    steps: int
    stored: int
    """Bytes."""


def convert(case_id, options, trees, home, jobs=1):
    """The cost of the last of some conversions of trees of raw files; those before it import and compile everything."""
    for number, tree in enumerate(trees):
        settings = Settings(home=home / str(number), progress=False, jobs=jobs)
        idle, start, begun = peak(), time.perf_counter(), sum(os.times()[:4])
        folder = download(case_id, from_local=tree, settings=settings, selection=Selection(options=options))
        took, cpu, grown = time.perf_counter() - start, sum(os.times()[:4]) - begun, peak() - idle
    steps, stored = StoredDataset(folder).manifest.steps, size(folder)
    shutil.rmtree(home)
    return Cost(took, cpu, seconds(lambda: read_alone(tree)), grown, steps, stored)


def read_alone(tree):
    """Digest all files of a tree, and read them with the libraries of their formats."""
    for path in tree.rglob("*"):
        if path.is_file():
            hashlib.sha256(path.read_bytes())
            read = next((read for part, read in READERS.items() if part in path.name), None)
            if read is not None:
                read(path)


def with_h5py(path):
    def read(_, item):
        if isinstance(item, h5py.Dataset):
            item[()]

    with h5py.File(path) as file:
        file.visititems(read)


def with_numpy(path):
    with np.load(path) as file:
        for name in file.files:
            file[name]


def with_pandas(path):
    with path.open("rb") as stream:
        next(line for line in stream if line.startswith(b"@data"))
        pd.read_csv(stream, header=None)


def with_lzma(path):
    with lzma.open(path) as stream:
        while stream.read(1 << 20):
            pass


def with_tarfile(path):
    with tarfile.open(path) as archive:
        for member in archive:
            if member.name.startswith("heist/"):  # a quarter of the archive: the files of the dataset
                with_numpy(io.BytesIO(archive.extractfile(member).read()))
            elif member.name.endswith("pickle"):
                with_pillow(pickle.load(archive.extractfile(member)))


def with_zipfile(path):
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with_numpy(io.BytesIO(archive.read(name)))


def with_protobuf(path):
    data, example, start = path.read_bytes(), messages()["t.Example"], 0
    if data[:2] == b"\x1f\x8b":
        data = igzip.decompress(data)
    while start < len(data):
        stop = start + 12 + int.from_bytes(data[start : start + 8], "little")
        for feature in example.FromString(data[start + 12 : stop]).features.feature.values():
            values = getattr(feature, feature.WhichOneof("kind")).value
            with_pillow(list(values)) if feature.bytes_list.value else np.asarray(values)
        start = stop + 4


def with_pillow(value):
    """Decode the images among nested values."""
    if isinstance(value, bytes) and value.startswith((b"\x89PNG", b"\xff\xd8\xff")):
        np.asarray(Image.open(io.BytesIO(value)))
    elif isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            with_pillow(one)


def with_isal(path):
    igzip.decompress(path.read_bytes())


def with_tensorstore(path):
    """Unpack a vault as OG-MARL does, and read its arrays."""
    from oracles.og_marl import read_vault

    with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as folder:
        archive.extractall(folder)
        for vault in Path(folder).glob("*.vlt/*"):
            read_vault(vault)


READERS = {
    ".h5": with_h5py,
    ".hdf5": with_h5py,
    ".npz": with_numpy,
    ".arff": with_pandas,
    ".parquet": parquet.read_table,
    ".xz": with_lzma,
    ".tar": with_tarfile,
    ".gz": with_isal,
    ".tfrecord": with_protobuf,
    "3m.zip": with_tensorstore,
    ".zip": with_zipfile,
    "train-": with_protobuf,
}


def converted(raw, root):
    """Convert the raw file of the dataset `NAME` below `root`; return the folder of the dataset."""
    settings = Settings.from_env({"RLDS_HOME": str(root), "RLDS_NO_PROGRESS": "1"})
    return download(f"d4rl/{NAME}", root=root, from_local=raw, hash_check=False, settings=settings)


def short_columns(episodes):
    """Return HalfCheetah's columns of episodes with `LENGTH` steps."""
    steps = episodes * LENGTH
    generator = np.random.default_rng(0)
    states = generator.standard_normal((episodes, LENGTH + 1, 17), np.float32)
    ends = np.arange(steps) % LENGTH == LENGTH - 1
    terminals = ends & (np.arange(steps) % (2 * LENGTH) < LENGTH)
    return {
        "actions": generator.standard_normal((steps, 6), np.float32),
        "observations": states[:, :-1].reshape(steps, 17),
        "rewards": generator.standard_normal(steps, np.float32),
        "terminals": terminals,
        "timeouts": ends & ~terminals,
        "next_observations": states[:, 1:].reshape(steps, 17),
    }


def torchrl_dataset(raw, root):
    """Return TorchRL's dataset class over the same raw file; a link replaces its download."""
    d4rl = pytest.importorskip("torchrl.data.datasets.d4rl", reason="pip install --no-deps torchrl hoptorch")

    def linked(_url, folder):
        path = Path(folder, "raw.hdf5")
        path.symlink_to(raw)
        return str(path)

    patch = pytest.MonkeyPatch()
    patch.setattr(d4rl, "_download_dataset_from_url", linked)
    try:
        return d4rl.D4RLExperienceReplay(NAME, batch_size=None, root=root, direct_download=True)
    finally:
        patch.undo()
