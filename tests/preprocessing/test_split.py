"""Splits: each episode is on one side, with its copies and its group, and the share is as near as it can be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_data import columns, trajectory, write_dataset

from datasets_rl import Recipe, load
from datasets_rl.errors import InvalidArgumentError, PreprocessError
from datasets_rl.format.copies import joined
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.preprocessing import preprocess, preview
from datasets_rl.preprocessing.batches import episode_batch
from datasets_rl.preprocessing.merge import MergedDataset
from datasets_rl.preprocessing.steps.split import Split

STEPS = 8
SIDES = ("train", "validation")


def stored_episodes(folder, seeds, **columns_of_episodes):
    """Store an episode for each seed: equal seeds are copies."""
    episodes = [
        trajectory(STEPS, seed=seed, **{name: values[number] for name, values in columns_of_episodes.items()})
        for number, seed in enumerate(seeds)
    ]
    return write_dataset(folder, episodes)


def side(stored, part, **arguments):
    """Return the numbers of the episodes on a side of a split of a stored dataset."""
    recipe = Recipe([Split(part, **arguments)])
    recipe.prepare(stored)
    if isinstance(stored, MergedDataset):
        batches = [*stored.episode_batches(0, len(stored.episodes), 10**9)]
    else:
        batches = [episode_batch(stored, 0, len(stored.episodes))]
    results = [result for batch in batches if (result := recipe(batch)) is not None]
    return {number for result in results for number in result.numbers.tolist()}


def sides(stored, **arguments):
    return tuple(side(stored, part, **arguments) for part in SIDES)


def cut_by(labels, part):
    """Return the labels that have episodes on both sides, given the episodes of one side."""
    return {label for label in labels if len({number in part for number, one in enumerate(labels) if one == label}) > 1}


LABELS = st.lists(st.integers(0, 9), min_size=2, max_size=40)
FEW = settings(max_examples=40, deadline=None)
SHARES = st.floats(0.02, 0.98)
SPLITS = st.builds(Split, st.just("validation"), SHARES, st.integers(0, 1000))


def assigned(split, copies, groups=None, source=None):
    """Return the numbers of the episodes for validation, given the labels of the episodes."""
    source = np.arange(len(copies)) if source is None else np.asarray(source)
    found = split.assign(
        source, np.zeros_like(source), np.asarray(copies), None if groups is None else np.asarray(groups)
    )
    return {*np.flatnonzero(found).tolist()}


@FEW
@given(split=SPLITS, copies=LABELS)
def test_copies_are_never_on_both_sides(split, copies):
    assert not cut_by(copies, assigned(split, copies))


@FEW
@given(split=SPLITS, copies=LABELS, data=st.data())
def test_groups_are_whole_and_the_share_is_missed_by_at_most_the_greatest_group(split, copies, data):
    groups = data.draw(st.lists(st.integers(0, 7), min_size=len(copies), max_size=len(copies)))
    units = joined([np.array(copies), np.array(groups)]).tolist()
    if len(set(units)) == 1:
        with pytest.raises(InvalidArgumentError, match="one group"):
            assigned(split, copies, groups)
        return
    held = assigned(split, copies, groups)

    assert not cut_by(groups, held)
    assert not cut_by(copies, held)
    assert 0 < len(held) < len(groups)
    assert abs(len(held) - split.validation * len(groups)) <= max(map(units.count, units))


@FEW
@given(split=SPLITS, copies=LABELS, data=st.data(), grouped=st.booleans())
def test_the_order_of_the_episodes_changes_no_side(split, copies, data, grouped):
    order = data.draw(st.permutations(range(len(copies))))
    groups = [0, 1] + [number % 3 for number in range(len(copies) - 2)] if grouped else None
    distinct = [*range(len(copies))] if grouped else copies
    held = assigned(split, distinct, groups)
    moved = [None if one is None else [one[number] for number in order] for one in (distinct, groups)]

    assert {order[number] for number in assigned(split, *moved, source=order)} == held


@FEW
@given(split=SPLITS, count=st.integers(1, 300))
def test_without_copies_the_share_is_missed_by_few_episodes(split, count):
    assert abs(len(assigned(split, range(count))) - split.validation * count) <= 4  # 3.29 is the discrepancy of 300


@pytest.mark.parametrize("groups", ["", "task"])
def test_the_sides_are_disjoint_and_complete_and_the_same_again(groups, tmp_path):
    seeds = [*range(12), 3, 3, 7, *range(20, 25)]
    stored = stored_episodes(tmp_path / "toy", seeds, task=[number % 6 for number in range(len(seeds))])
    train, held = sides(stored, validation=0.4, groups=groups)

    assert not train & held
    assert train | held == {*range(len(seeds))}
    assert not cut_by(seeds, held)
    assert side(stored, "validation", validation=0.4, groups=groups) == held
    assert side(stored, "validation", validation=0.4, groups=groups, seed=1) != held


def test_without_copies_and_groups_the_numbers_alone_decide(tmp_path):
    stored = stored_episodes(tmp_path / "toy", range(50))
    held = side(stored, "validation", validation=0.2)
    (alone,) = [Recipe([Split("validation", 0.2)])(episode_batch(stored, 0, 50))]

    assert held == {*alone.numbers.tolist()}
    assert len(held) == 10


def test_copies_stay_together_whatever_was_dropped_before(tmp_path):
    """Episode 4 decides for its copy, also if only one of the two recipes drops episode 4."""
    stored = stored_episodes(tmp_path / "toy", [*range(20), 4, 4])
    train = Recipe.inline(["split:train,0.5"])
    held = Recipe.inline(["drop_episodes:4", "split:validation,0.5"])
    for recipe in (train, held):
        recipe.prepare(stored)
    batch = episode_batch(stored, 0, 22)
    first, second = ({*recipe(batch).numbers.tolist()} for recipe in (train, held))

    assert not first & second
    assert first | second in ({*range(22)}, {*range(22)} - {4})


def test_episodes_without_information_are_never_copies(tmp_path):
    """Episodes that rest, all equal, are divided as if they were different."""
    rest = trajectory(STEPS, seed=0)
    rest = replace(
        rest,
        steps={key: one if key[-1] == "truncated" else np.zeros_like(one) for key, one in rest.steps.items()},
        states={key: np.zeros_like(one) for key, one in rest.states.items()},
    )
    stored = write_dataset(tmp_path / "toy", [rest] * 20)

    assert len(side(stored, "validation", validation=0.2)) == 4


def test_actions_of_a_script_do_not_make_copies_of_episodes_with_other_states(tmp_path):
    script = trajectory(STEPS, seed=0).steps["action",]
    episodes = [trajectory(STEPS, seed=seed) for seed in range(20)]
    episodes = [replace(one, steps={**one.steps, ("action",): script}) for one in episodes]
    stored = write_dataset(tmp_path / "toy", episodes)

    assert len(side(stored, "validation", validation=0.2)) == 4


def test_a_copy_with_other_rewards_is_a_copy(tmp_path):
    episodes = [trajectory(STEPS, seed=seed) for seed in range(20)]
    again = [
        replace(one, steps={**one.steps, ("next", "reward"): one.steps["next", "reward"] + 1.0}) for one in episodes
    ]
    stored = write_dataset(tmp_path / "toy", [*episodes, *again])

    held = side(stored, "validation", validation=0.25)
    assert not cut_by([*range(20)] * 2, held)
    assert len(held) == 10


def test_the_members_of_a_merge_have_their_copies_on_one_side(tmp_path):
    """The second member is other files: a copy of half of the first, in another order, with another name of the observation."""
    first = stored_episodes(tmp_path / "first", range(20))
    second = stored_episodes(tmp_path / "second", [*range(100, 110), *range(19, 9, -1)])
    merged = MergedDataset([first, StoredDataset(second.folder)])
    train, held = sides(merged, validation=0.3)

    assert not train & held
    assert train | held == {*range(40)}
    assert not cut_by([*range(20), *range(100, 110), *range(19, 9, -1)], held)


def test_a_field_of_the_steps_gives_the_groups_and_the_manifest_has_the_counts(tmp_path):
    number = Column(("info", "scene"), np.dtype("i8"), (1,))
    scenes = [0, 1, 2, 3] * 5
    episodes = [trajectory(STEPS, seed=seed % 18) for seed in range(20)]
    episodes = [
        replace(one, steps={**one.steps, ("info", "scene"): np.full((STEPS, 1), scene)})
        for one, scene in zip(episodes, scenes, strict=True)
    ]
    write_dataset(tmp_path / "toy", episodes, columns(number))
    parts = [
        load(preprocess(tmp_path / "toy", Recipe.inline([f"split:{part},0.25,groups=info.scene"]), out=tmp_path / part))
        for part in SIDES
    ]
    found = [{*part[:]["info", "scene"].flatten().tolist()} for part in parts]

    assert not found[0] & found[1]
    # The episodes 18 and 19 are copies of 0 and 1 in other scenes, so that the scenes 0 and 2, and 1 and 3 are together.
    assert found[1] in ({0, 2}, {1, 3})
    counts = {"episodes": 20, "copies": 4, "groups": 4, "validation_episodes": 10}
    assert parts[0].metadata["preprocess"]["0"]["0.split"] == counts
    found = preview(tmp_path / "toy", Recipe.inline(["split:train,0.25,groups=info.scene"]), out=tmp_path / "more")
    (sentence,) = found.splits
    assert sentence.startswith(
        "10 of 20 episodes are for validation, 4 groups of info.scene are whole, 4 episodes that"
    )


@pytest.mark.parametrize(
    ("groups", "values", "problem"),
    [
        (
            "scene",
            None,
            r"toy/data has no scene, expected one of its columns of episodes, source, task, or of its fields, observation",
        ),
        ("task", ["a"] * 6, r"all 6 episodes are of one group of task"),
        ("task", ["a", "", "b", "", "c", "d"], r"2 of 6 episodes of .* have no task, the first is episode 1"),
        ("task", [0.5, np.nan, 1, 1, 2, 2], r"1 of 6 episodes of .* have no task, the first is episode 1"),
        ("action", None, r"action changes in episode 0 of .*, at step 1"),
    ],
)
def test_groups_that_are_not_there_are_refused(groups, values, problem, tmp_path):
    stored = stored_episodes(tmp_path / "toy", range(6), task=values or ["a", "b"] * 3)
    with pytest.raises(PreprocessError, match=rf"step 0 \(split\): {problem}"):
        side(stored, "train", groups=groups)


def test_a_recipe_with_groups_needs_the_dataset(tmp_path):
    stored = stored_episodes(tmp_path / "toy", range(6), task=["a", "b"] * 3)
    with pytest.raises(PreprocessError, match="the groups of task are unknown"):
        Recipe([Split("train", groups="task")])(episode_batch(stored, 0, 6))
