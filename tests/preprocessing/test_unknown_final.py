"""Steps for episodes with unknown final observations: the removed rows, and the targets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_data import Model, trajectory, write_dataset

from datasets_rl import Recipe, load
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.check import check_rules
from datasets_rl.transforms import MultiStepTransform

MASK = ("next", "final_known")

shapes = st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.booleans()), min_size=1, max_size=6)


def trajectories(of):
    return [
        trajectory(steps, seed=number, known=known, terminated=terminated)
        for number, (steps, known, terminated) in enumerate(of)
    ]


def put_through(folder, of, *steps):
    """Write a dataset, apply steps, and open the result."""
    stored = write_dataset(folder / "toy", trajectories(of))
    load(stored.folder, final_unknown="keep").preprocess(
        steps[0] if len(steps) == 1 and not isinstance(steps[0], str) else Recipe.inline(list(steps)),
        dest=folder / "out",
    )
    return load(folder / "out", final_unknown="keep")


@settings(max_examples=20, deadline=None)
@given(of=shapes, ends=st.sampled_from(["all", "truncated"]))
def test_dropping_cuts_exactly_the_last_steps_without_a_next_observation(tmp_path_factory, of, ends):
    of = [*of, (2, True, False)]  # at least one episode remains
    came = put_through(tmp_path_factory.mktemp("cut"), of, f"drop_unknown_final:{ends}")
    model, kept, lasts, row = Model(trajectories(of)), [], [], 0
    for steps, known, terminated in of:
        gone = not known and (ends == "all" or not terminated)
        kept += range(row, row + steps - gone)
        lasts += [step + 1 == steps - gone for step in range(steps - gone)]
        row += steps
    for key in (("observation",), ("action",), ("next", "observation"), ("next", "reward"), ("next", "terminated")):
        assert np.array_equal(came[key].numpy(), [model.rows[key][number] for number in kept]), key

    assert came["next", "done"][:, 0].tolist() == lasts
    assert torch.equal(came["next", "truncated"], came["next", "done"] & ~came["next", "terminated"])
    unknown = ~came["next", "observation"].any(-1)
    assert (MASK in came) == bool(unknown.any())
    assert torch.equal(came["next", "terminated"][unknown], torch.ones(int(unknown.sum()), 1, dtype=torch.bool))
    assert check_rules(came.stored.schema, came.episodes, came.stored.column).problems == []
    if ends == "all":
        assert came.episodes["final_known"].all()


def test_dropping_again_changes_nothing(tmp_path):
    of = [(3, False, False), (2, True, False)]
    came = put_through(tmp_path, of, "drop_unknown_final", "drop_unknown_final")

    assert came.episodes.lengths.tolist() == [2, 2]


def test_only_two_types_of_ends_can_be_dropped():
    with pytest.raises(ValueError, match="expected 'all' or 'truncated'"):
        Recipe.inline(["drop_unknown_final:some"])


@settings(max_examples=20, deadline=None)
@given(of=shapes, n=st.integers(1, 4))
def test_stored_n_step_targets_are_those_of_the_transform(tmp_path_factory, of, n):
    """The transform is compared with a plain loop in tests/datasets/test_final_known.py."""
    came = put_through(tmp_path_factory.mktemp("n"), of, f"n_step_targets:{n},0.5")
    wanted = MultiStepTransform(n, 0.5)(came[:])
    n_step = came["n_step"]

    assert torch.allclose(n_step["reward"], wanted["next", "reward"])
    assert torch.equal(n_step["observation"], wanted["next", "observation"])
    assert torch.equal(n_step["nonterminal"][:, 0], wanted["nonterminal"])
    assert torch.allclose(n_step["gamma"][:, 0], wanted["gamma"])
    assert n_step["observation"][n_step["nonterminal"][:, 0]].all()


def test_functions_always_receive_the_mask_and_need_not_return_it(tmp_path):
    def keep(step):
        step["seen"] = step[MASK].clone()
        return step

    of = [(3, False, False), (2, True, False)]
    came = put_through(tmp_path, of, keep)

    assert came["seen"][:, 0].tolist() == [True, True, False, True, True]
    assert torch.equal(came[MASK], came["seen"])
    assert MASK not in [field.key for field in came.stored.schema]


def test_a_field_of_the_name_of_the_mask_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="final_known has a name that the format uses"):
        put_through(tmp_path, [(3, False, False)], "rename:action,next.final_known")
