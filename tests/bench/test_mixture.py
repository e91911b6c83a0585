"""What a batch of four mixed datasets costs: against TorchRL's ensemble of memory-mapped storages of the same rows."""

import pytest
import torch

from datasets_rl import Mixture
from datasets_rl.datasets import StoredExperienceReplay


@pytest.mark.parametrize("batch_size", [256, 4096])
def test_a_batch_of_four_datasets_is_faster_than_torchrl(
    ours, torchrl_data, tmp_path, batch_size, size, compare, expect
):
    rows = ours[: size(full=200_000, small=1_000)]
    theirs = []
    for number in range(4):
        storage = torchrl_data.LazyMemmapStorage(len(rows), scratch_dir=tmp_path / str(number))
        theirs.append(torchrl_data.TensorDictReplayBuffer(storage=storage, batch_size=batch_size))
        theirs[-1].extend(rows)
    shares = [0.4, 0.3, 0.2, 0.1]
    opened = [StoredExperienceReplay(str(ours.data_path)) for _ in shares]
    mixed = Mixture(*opened, p=shares, batch_size=batch_size)
    ensemble = torchrl_data.ReplayBufferEnsemble(*theirs, p=torch.tensor(shares), batch_size=batch_size)

    took = compare(
        {"mixture": mixed.sample, "one dataset": lambda: ours.sample(batch_size), "torchrl": ensemble.sample},
        repeat=12 if batch_size < 1000 else 5,
    )

    ratio = took["torchrl"] / took["mixture"]
    expect(f"{batch_size} steps of four datasets, times TorchRL's speed", ratio, at_least=1.5)
