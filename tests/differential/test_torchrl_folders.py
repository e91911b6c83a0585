"""Folders that TorchRL's buffers and datasets write have the values that TorchRL samples from them, bit for bit."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from raw.torchrl import draw, in_ted
from tensordict import TensorDict

from datasets_rl import Selection, download, load

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    data = pytest.importorskip("torchrl.data", reason="pip install --no-deps torchrl hoptorch")

pytestmark = pytest.mark.filterwarnings("ignore")
SKIPPED = {"done", "terminated", "truncated", "episode", "index"}
"""Keys whose values differ on purpose: flags beside next, numbers of episodes, and rows of the buffer."""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))


def steps_of(lengths, seed: int = 0) -> TensorDict:
    rng = np.random.default_rng(seed)
    return in_ted([draw(rng, length, ("terminated", "truncated")[at % 2]) for at, length in enumerate(lengths)])


def opened(folder: Path, **options: str) -> TensorDict:
    download(folder, selection=Selection(options=options))
    return load(folder, download=False)[:]


def same_bits(ours: TensorDict, theirs: TensorDict) -> None:
    compared = 0
    for key, values in theirs.items(include_nested=True, leaves_only=True):
        path: Any = key if isinstance(key, tuple) else (key,)
        if path[0] in SKIPPED or (path[-1] in {"done", "truncated"} and path[0] == "next"):
            continue
        assert ours[key].dtype == values.dtype, key
        assert torch.equal(ours[key].reshape(values.shape).view(torch.uint8), values.contiguous().view(torch.uint8)), (
            key
        )
        compared += 1
    assert compared >= 5


@pytest.mark.parametrize("capacity", [40, 30, 17], ids=["partly filled", "filled", "a full ring"])
def test_a_dumped_buffer_has_the_rows_that_it_samples(capacity, tmp_path):
    buffer = data.TensorDictReplayBuffer(storage=data.LazyMemmapStorage(capacity), batch_size=64)
    for row in steps_of((9, 1, 12, 8)):
        buffer.add(row)
    buffer.dumps(tmp_path / "buffer")
    other = data.TensorDictReplayBuffer(storage=data.LazyMemmapStorage(capacity), batch_size=64)
    other.add(steps_of((1,))[0])
    other.loads(tmp_path / "buffer")

    ours = opened(tmp_path / "buffer")

    batch = other.sample()
    oldest = other.writer._cursor if len(other) == capacity else 0
    same_bits(ours[(batch["index"].reshape(-1) - oldest) % len(other)], batch)
    assert len(ours) == len(other) == min(capacity, 30)


def test_a_buffer_of_several_environments_has_the_rows_that_it_samples(tmp_path):
    buffer = data.TensorDictReplayBuffer(storage=data.LazyMemmapStorage(36, ndim=2), batch_size=64)
    columns = torch.stack([steps_of((5, 11, 4), seed) for seed in range(3)])  # [3, 20]
    for start in range(0, 20, 4):
        buffer.extend(columns[:, start : start + 4])
    buffer.dumps(tmp_path / "buffer")

    ours = opened(tmp_path / "buffer")

    assert buffer.storage.shape == (12, 3)
    batch = buffer.sample()
    time, environment = batch["index"].unbind(-1)
    same_bits(ours[environment * 12 + (time - buffer.writer._cursor) % 12], batch)


def test_a_scratch_folder_has_the_written_rows(tmp_path):
    storage = data.LazyMemmapStorage(50, scratch_dir=tmp_path / "scratch")
    buffer = data.TensorDictReplayBuffer(storage=storage, batch_size=8)
    steps = steps_of((9, 12))
    buffer.extend(steps)

    same_bits(opened(tmp_path / "scratch", rows="filled"), steps)


def test_a_buffer_that_keeps_the_best_rows_has_rows_in_no_order(tmp_path):
    writer = data.TensorDictMaxValueWriter(rank_key=("next", "reward"))
    buffer = data.TensorDictReplayBuffer(storage=data.LazyMemmapStorage(8), writer=writer, batch_size=8)
    for row in steps_of((9, 12)):
        buffer.add(row)
    buffer.dumps(tmp_path / "buffer")

    ours = opened(tmp_path / "buffer", order="none")

    same_bits(ours, buffer[:])
    assert 1 < len({*ours["episode"].tolist()}) <= 8  # two rows may follow each other


def test_split_trajectories_have_the_steps_without_the_padding(tmp_path):
    from torchrl.collectors.utils import split_trajectories

    steps = steps_of((9, 1, 12, 8))
    split_trajectories(steps.clone()).memmap(tmp_path / "split")

    same_bits(opened(tmp_path / "split"), steps)


def test_a_saved_hook_is_named(tmp_path):
    from datasets_rl.errors import ConversionError

    buffer = data.ReplayBuffer(storage=data.LazyMemmapStorage(30))
    buffer.register_save_hook(data.TED2Flat())
    buffer.extend(steps_of((9, 12)))
    buffer.dumps(tmp_path / "buffer")

    with pytest.raises(ConversionError, match="a save hook such as TED2Flat"):
        opened(tmp_path / "buffer")


def test_torchrls_d4rl_is_read_with_unknown_states_after_the_last_steps(tmp_path):
    import h5py
    from torchrl.data.datasets import D4RLExperienceReplay

    steps = steps_of((9, 1, 12, 8))
    with h5py.File(tmp_path / "raw.hdf5", "w") as file:
        file["observations"], file["actions"] = steps["observation"].numpy(), steps["action"].numpy()
        file["rewards"] = steps["next", "reward"][:, 0].numpy()
        file["terminals"] = steps["next", "terminated"][:, 0].numpy()
        file["timeouts"] = steps["next", "truncated"][:, 0].numpy()
        raw = TensorDict({name: torch.from_numpy(values[:]) for name, values in file.items()}, [30])
    made = D4RLExperienceReplay.__new__(D4RLExperienceReplay)
    made.use_truncated_as_done = True
    theirs = made._process_data_from_env(raw)
    theirs["next", "observation"][theirs["next", "done"].squeeze()] = 0
    theirs.memmap(tmp_path / "d4rl")

    ours = opened(tmp_path / "d4rl")

    same_bits(ours, theirs.exclude("reward"))
    assert load(tmp_path / "d4rl", download=False).episodes["final_known"].tolist() == [False, False, False, True]
