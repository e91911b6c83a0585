"""Which episodes are held out of mixtures: a share of each member, with copies on one side."""

from __future__ import annotations

import argparse

import numpy as np
import pytest
from stored_data import store_dataset, trajectory

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.training import TrainingData, load_transitions
from datasets_rl.training.data import Named
from datasets_rl.training.holding_out import hold_out

KEYS = ("observation", "action")


def opened(folder, *members):
    """Return the data of members, given by the seeds of their episodes."""
    names = [
        store_dataset(folder / str(number), [trajectory(10, seed=seed) for seed in seeds]).folder
        for number, seeds in enumerate(members)
    ]
    (folder / "mix.toml").write_text("".join(f'[[member]]\ndataset = "{name.parent}"\n' for name in names))
    args = argparse.Namespace(seed=0, device="cpu", no_conventions=True)
    return TrainingData(
        Named.read(str(folder / "mix.toml")), lambda own, **part: load_transitions(own, KEYS, **part), args
    )


def test_a_share_of_each_member_is_held_out(tmp_path):
    held_out = hold_out(opened(tmp_path, range(40), range(40, 50)), 0.2, seed=0)

    assert [*map(len, held_out.validating)] == [8, 2]
    assert [*map(len, held_out.training)] == [32, 8]
    assert held_out.copies == 0


@pytest.mark.parametrize("seed", range(5))
def test_no_copy_of_a_held_out_episode_is_trained_on_in_any_member(seed, tmp_path):
    members = [*range(20)], [*range(10, 20), *range(30, 40), 30, 31]
    held_out = hold_out(opened(tmp_path, *members), 0.25, seed)
    validating, training = (
        [{member[number] for number in numbers.tolist()} for member, numbers in zip(members, part, strict=True)]
        for part in (held_out.validating, held_out.training)
    )

    assert not (validating[0] | validating[1]) & (training[0] | training[1])
    assert all(len(numbers) >= 5 for numbers in held_out.validating)
    copied = {*range(10, 20), 30, 31}
    assert held_out.copies == sum(
        member[number] in copied
        for member, numbers in zip(members, held_out.validating, strict=True)
        for number in numbers.tolist()
    )
    for seeds, *parts in zip(members, held_out.validating, held_out.training, strict=True):
        assert sorted(np.concatenate(parts)) == [*range(len(seeds))]


def test_a_member_whose_copies_are_all_held_out_is_refused(tmp_path):
    data = opened(tmp_path, [*range(10)], [0, 1] * 6)
    with pytest.raises(
        InvalidArgumentError, match=r"all 12 episodes of .*1 would be held out, with copies in other members"
    ):
        hold_out(data, 0.9, seed=1)
