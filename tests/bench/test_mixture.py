"""What a batch of four mixed datasets costs: against TorchRL's ensemble of memory-mapped storages of the same rows."""

import pytest
import torch
from bench_data import compare

from datasets_rl import Mixture, ReplayBufferEnsemble

GOAL = 1.5


@pytest.mark.parametrize("batch_size", [256, 4096])
def test_a_batch_of_four_datasets_is_faster_than_torchrl(ours, tmp_path, batch_size, show):
    data = pytest.importorskip("torchrl.data", reason="pip install --no-deps torchrl hoptorch")
    from datasets_rl.datasets import StoredExperienceReplay

    def opened():
        return [StoredExperienceReplay(str(ours.data_path)) for _ in range(4)]

    rows = ours[:200_000]
    theirs = []
    for number in range(4):
        storage = data.LazyMemmapStorage(len(rows), scratch_dir=tmp_path / str(number))
        theirs.append(data.TensorDictReplayBuffer(storage=storage, batch_size=batch_size))
        theirs[-1].extend(rows)
    shares = [0.4, 0.3, 0.2, 0.1]
    mixed = Mixture(*opened(), p=shares, batch_size=batch_size)
    stacked = ReplayBufferEnsemble(*opened(), p=shares, batch_size=batch_size)
    ensemble = data.ReplayBufferEnsemble(*theirs, p=torch.tensor(shares), batch_size=batch_size)

    took = compare(
        {
            "mixture": mixed.sample,
            "our ensemble": stacked.sample,
            "one dataset": lambda: ours.sample(batch_size),
            "torchrl": ensemble.sample,
        },
        repeat=50 if batch_size < 1000 else 20,
    )

    micro = {name: round(value * 1e6) for name, value in took.items()}
    show(
        f"\nfour datasets, {batch_size} steps: {micro} us; {took['torchrl'] / took['mixture']:.1f} times faster than TorchRL"
    )
    assert took["torchrl"] >= GOAL * took["mixture"]
