"""Batches mark final observations that are unknown, and no target uses the zeros that are stored for them."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from d4rl_files import mujoco
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_data import Model, trajectory, write_dataset

from datasets_rl import (
    DatasetStorage,
    LazyTensorStorage,
    Mixture,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SampledBatches,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    download,
    load,
    verify,
)
from datasets_rl.errors import IntegrityError, InvalidArgumentError, UnknownFinalWarning, UnknownKeyError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.sources import Selection
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.table import EpisodeTable
from datasets_rl.transforms import CatFrames, Compose, MultiStepTransform, Reward2GoTransform, SelectTransform

MASK = ("next", "final_known")
SHAPES = [(4, False, False), (3, True, False), (1, False, True), (5, False, True), (1, False, False), (2, True, True)]
"""Per episode: number of steps, whether the final observation is known, whether it is terminated."""

shapes = st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.booleans()), min_size=1, max_size=6)


def trajectories(of=SHAPES):
    """Return trajectories with values between 1 and 2, so that all zeros are unknown observations."""
    return [
        trajectory(steps, seed=number, known=known, terminated=terminated)
        for number, (steps, known, terminated) in enumerate(of)
    ]


@pytest.fixture
def folder(tmp_path):
    return write_dataset(tmp_path / "toy", trajectories()).folder


@pytest.fixture
def complete(tmp_path):
    return write_dataset(tmp_path / "complete", [trajectory(4, seed=7), trajectory(6, seed=8)]).folder


def mask_of(of=SHAPES):
    """Return the mask of every row, computed in plain Python."""
    return [known or step + 1 < steps for steps, known, _ in of for step in range(steps)]


def samplers():
    def prioritized(kind, **options):
        return kind(max_capacity=16, alpha=0.7, beta=0.5, **options)

    return {
        "random": RandomSampler(),
        "without replacement": SamplerWithoutReplacement(),
        "prioritized": prioritized(PrioritizedSampler),
        "slices": SliceSampler(slice_len=2),
        "short slices": SliceSampler(slice_len=4, strict_length=False),
        "padded slices": SliceSampler(slice_len=4, strict_length=False, pad_output=True),
        "slices that overlap the ends": SliceSampler(slice_len=4, strict_length=False, span=True),
        "slices without replacement": SliceSamplerWithoutReplacement(slice_len=2),
        "prioritized slices": prioritized(PrioritizedSliceSampler, slice_len=2),
    }


@pytest.mark.first(12)
@pytest.mark.parametrize("name", samplers())
@pytest.mark.parametrize("prefetch", [None, 2], ids=["", "prefetched"])
def test_every_sampler_gives_the_mask_of_the_rows_that_it_draws(folder, name, prefetch):
    dataset = load(folder, sampler=samplers()[name], batch_size=8, prefetch=prefetch)
    wanted, drawn = torch.tensor(mask_of()), set()
    for _ in range(30):
        batch = dataset.sample()
        rows = batch["index"].reshape(-1)
        drawn.update(rows.tolist())
        assert batch[MASK].dtype == torch.bool
        assert batch[MASK].shape == (*batch.batch_size, 1)
        assert batch[MASK][:, 0].tolist() == wanted[rows].tolist()
        assert torch.equal(batch[MASK][:, 0], batch["next", "observation"].any(-1))

    assert not wanted[sorted(drawn)].all()


@settings(max_examples=25, deadline=None)
@given(of=shapes, data=st.data())
def test_any_index_gives_the_same_mask_as_the_column(tmp_path_factory, of, data):
    stored = write_dataset(tmp_path_factory.mktemp("drawn") / "toy", trajectories(of))
    dataset, wanted = load(stored.folder), mask_of(of)
    rows = data.draw(st.lists(st.integers(-len(wanted), len(wanted) - 1), min_size=1, max_size=9))
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(wanted))] * 2)))
    if all(wanted):
        assert MASK not in dataset
        assert MASK not in dataset[rows].keys(True, True)
        with pytest.raises(UnknownKeyError, match="final_known"):
            _ = dataset[MASK]
        return

    assert dataset[MASK][:, 0].tolist() == wanted
    assert dataset[rows][MASK][:, 0].tolist() == [wanted[row] for row in rows]
    assert dataset[rows[0]][MASK].tolist() == [wanted[rows[0]]]
    assert dataset[start:stop][MASK][:, 0].tolist() == wanted[start:stop]
    assert dataset.storage.pick(MASK, torch.tensor(rows))[:, 0].tolist() == [wanted[row] for row in rows]
    assert dataset["next"]["final_known"][:, 0].tolist() == wanted
    assert stored.column(MASK, start, stop)[:, 0].tolist() == wanted[start:stop]


def test_the_keys_of_batches_do_not_depend_on_what_is_drawn(folder):
    dataset = load(folder)
    inside = dataset[:3]

    assert inside[MASK].all()
    assert set(inside.keys(True, True)) == set(dataset[3:4].keys(True, True)) == set(dataset[:0].keys(True, True))


def test_a_dataset_without_unknown_observations_has_no_mask(complete):
    dataset = load(complete, batch_size=4)

    assert MASK not in dataset.sample().keys(True, True)
    assert MASK not in list(dataset.storage.keys())
    assert not dataset.storage.masked


def test_iterating_numpy_selecting_and_whole_trajectories_give_the_mask(folder):
    dataset = load(folder, sampler=SamplerWithoutReplacement(shuffle=False), batch_size=16)
    selected = load(folder, batch_size=16, transform=SelectTransform("observation", MASK))
    split = load(folder, split_trajs=True)[:]
    whole = mask_of()

    assert next(iter(dataset))[MASK][:, 0].tolist() == whole
    assert dataset.sample().numpy()["next"]["final_known"].dtype == np.bool_
    batch = selected.sample()
    assert batch[MASK][:, 0].tolist() == torch.tensor(whole)[batch["index"]].tolist()
    assert split[MASK][..., 0][split["mask"]].tolist() == whole
    assert not split[MASK][..., 0][~split["mask"]].any()


def elsewhere(dataset, queue):
    """Return the mask; runs in a spawned process, which shares no memory with this one."""
    queue.put(dataset[:][MASK][:, 0].tolist())


@pytest.mark.usefixtures("warm_python")
def test_other_processes_read_it(folder):
    dataset = load(folder, batch_size=4)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=elsewhere, args=(dataset, queue))
    process.start()
    assert queue.get(timeout=120) == mask_of()
    process.join()

    loader = SampledBatches(dataset, batches=6).loader(num_workers=2)
    wanted = torch.tensor(mask_of())
    assert all(batch[MASK][:, 0].equal(wanted[batch["index"]]) for batch in loader)
    assert pickle.loads(pickle.dumps(DatasetStorage(dataset.stored, masked=True))).masked


def test_the_specs_have_the_key(tmp_path):
    from datasets_rl.specs import from_manifest

    kinds = {"kind": "unbounded", "dtype": "float32"}
    specs = {
        name: {**kinds, "shape": shape}
        for name, shape in {"observation": [3], "action": [2], "next.reward": [1]}.items()
    }
    flag = {"kind": "discrete", "n": 2, "shape": [1], "dtype": "bool"}
    number = {"kind": "unbounded", "shape": [], "dtype": "int64"}
    specs |= dict.fromkeys(["next.terminated", "next.truncated", "next.done"], flag) | {"episode": number}
    stored = write_dataset(tmp_path / "toy", trajectories(), specs=specs)
    dataset = load(stored.folder, batch_size=4)

    assert MASK in from_manifest(stored.manifest).keys(True, True)
    assert dataset.specs.is_in(dataset.sample())
    assert MASK not in load(stored.folder, final_unknown="drop").specs.keys(True, True)


def test_a_manifest_that_counts_other_unknown_observations_than_the_table_is_refused(tmp_path):
    stored = write_dataset(tmp_path / "toy", trajectories(), final_unknown=0)

    with pytest.raises(IntegrityError, match=r"4 final observations are unknown, but the manifest states 0"):
        _ = load(stored.folder).episodes


def kept_by_hand(of, which):
    """Return the rows that remain, and whether each is the last row of its episode afterwards."""
    kept, row = [], 0
    for steps, known, terminated in of:
        gone = not known and (which == "drop" or not terminated)
        kept += [(row + step, step + 1 == steps - gone) for step in range(steps - gone)]
        row += steps
    return kept


@settings(max_examples=25, deadline=None)
@given(of=shapes, which=st.sampled_from(["drop", "drop_truncated"]))
def test_dropping_removes_exactly_the_transitions_without_a_next_observation(tmp_path_factory, of, which):
    stored = write_dataset(tmp_path_factory.mktemp("dropped") / "toy", trajectories(of))
    kept = kept_by_hand(of, which)
    if not kept:
        with pytest.raises(InvalidArgumentError, match="removes all"):
            load(stored.folder, final_unknown=which)
        return
    dataset, model = load(stored.folder, final_unknown=which), Model(trajectories(of))
    everything = dataset[:]

    assert len(dataset) == len(kept)
    for key, rows in model.rows.items():
        if key == ("episode",) or (key[0] == "next" and key[1] in {"done", "truncated", "final_known"}):
            continue
        assert np.array_equal(everything[key].numpy(), [rows[row] for row, _ in kept]), key
    ends = [last for _, last in kept]
    assert everything["episode"].tolist() == [sum(ends[:row]) for row in range(len(kept))]
    assert everything["next", "done"][:, 0].tolist() == ends
    assert torch.equal(everything["next", "truncated"], everything["next", "done"] & ~everything["next", "terminated"])
    unknown = [not mask_of(of)[row] for row, _ in kept]
    assert (MASK in dataset) == any(unknown)
    assert (~everything["next", "observation"].any(-1)).tolist() == unknown
    assert (~dataset.episodes["final_known"]).sum() == sum(unknown)
    rewards = everything["next", "reward"][:, 0].numpy()
    sums = [rewards[list(rows)].sum() for rows in dataset.episodes]
    assert dataset.episodes["return"] == pytest.approx(sums)


@pytest.mark.parametrize("name", [name for name in samplers() if "slices" not in name])
def test_every_sampler_draws_from_the_remaining_rows(folder, name):
    dataset = load(folder, final_unknown="drop", sampler=samplers()[name], batch_size=8)
    seen = torch.cat([dataset.sample()["next", "observation"] for _ in range(20)])

    assert len(dataset) == sum(mask_of())
    assert seen.all()


def test_slices_end_where_the_observation_is_known(folder):
    dataset = load(folder, final_unknown="drop", sampler=SliceSampler(slice_len=3), batch_size=6)

    assert torch.cat([dataset.sample()["next", "observation"] for _ in range(20)]).all()


def test_an_unknown_option_is_refused(folder):
    with pytest.raises(InvalidArgumentError, match="'drop_truncated'"):
        load(folder, final_unknown="no")


def opened(folder, **options):
    """Return the warnings that opening a dataset raises."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(folder, **options)
    return [one for one in caught if issubclass(one.category, UnknownFinalWarning)]


def test_opening_warns_once_per_dataset_with_the_count_and_the_remedy(folder, tmp_path):
    (warning,) = opened(folder)

    assert "toy/data: the final observation of 4 of 6 episodes is unknown" in str(warning.message)
    assert "final_unknown='drop_truncated'" in str(warning.message)
    assert warning.filename == __file__
    assert opened(folder) == []
    assert len(opened(write_dataset(tmp_path / "other", trajectories()).folder)) == 1


@pytest.mark.parametrize("option", ["keep", "drop"])
def test_an_explicit_option_suppresses_the_warning(folder, option):
    assert opened(folder, final_unknown=option) == []


def test_a_dataset_without_unknown_observations_does_not_warn(complete):
    assert opened(complete) == []


def test_a_filter_that_turns_the_warning_into_an_error_applies_every_time(folder):
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UnknownFinalWarning)
            with pytest.raises(UnknownFinalWarning):
                load(folder)


@pytest.mark.usefixtures("warm_python")
def test_a_program_is_warned_on_stderr_at_its_own_line(folder, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(f"from datasets_rl import load\nload({str(folder)!r})\n")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)

    assert done.stderr.startswith(f"{program}:2: UnknownFinalWarning: toy/data: ")


def n_step_by_hand(of, n, gamma):
    """Return the n-step target of every row: reward, row of the next observation, number of steps, bootstraps."""
    model, found, start = Model(trajectories(of)), [], 0
    for steps, known, terminated in of:
        for first in range(start, start + steps):
            last = min(first + n, start + steps) - 1
            if not known and not terminated and last == start + steps - 1 and last > first:
                last -= 1
            rewards = [float(model.rows["next", "reward"][row][0]) for row in range(first, last + 1)]
            final = last == start + steps - 1
            bootstraps = not (final and terminated) and (known or not final)
            found.append((sum(gamma**k * r for k, r in enumerate(rewards)), last, last - first + 1, bootstraps))
        start += steps
    return model, found


@settings(max_examples=25, deadline=None)
@given(of=shapes, n=st.integers(1, 5))
def test_n_step_targets_are_those_of_a_plain_loop_and_never_use_an_unknown_observation(tmp_path_factory, of, n):
    stored = write_dataset(tmp_path_factory.mktemp("n") / "toy", trajectories(of))
    model, wanted = n_step_by_hand(of, n, 0.5)
    step = MultiStepTransform(n, 0.5)
    plain_rows = load(stored.folder)[:]
    held = TensorDictReplayBuffer(storage=LazyTensorStorage(len(plain_rows)), transform=step)
    held.extend(plain_rows)
    selected = Compose(
        SelectTransform("observation", ("next", "observation"), ("next", "reward"), ("next", "done")), step
    )
    ways = {
        "rows of the storage": load(stored.folder, transform=step)[:],
        "a batch in time": step(plain_rows),
        "a buffer that holds a copy": held[:],
        "rows without the mask": load(stored.folder, transform=selected)[:],
    }
    for way, batch in ways.items():
        assert batch["next", "reward"][:, 0].tolist() == pytest.approx([one[0] for one in wanted], rel=1e-5), way
        following = np.stack([model.rows["next", "observation"][row] for _, row, _, _ in wanted])
        assert np.array_equal(batch["next", "observation"].numpy(), following), way
        assert batch["steps_to_next_obs"].tolist() == [steps for _, _, steps, _ in wanted], way
        if way == "rows without the mask":
            continue  # the flag that marks terminations is missing, too
        assert batch["nonterminal"].tolist() == [counts for *_, counts in wanted], way
        assert batch["next", "observation"][batch["nonterminal"]].all(), way
        if MASK in batch.keys(True):
            assert batch[MASK][:, 0].tolist() == [mask_of(of)[row] for _, row, _, _ in wanted], way


@pytest.mark.parametrize("name", ["random", "slices", "padded slices", "prioritized"])
def test_n_step_targets_of_drawn_rows_are_those_of_the_rows(folder, name):
    step = MultiStepTransform(3, 0.9)
    everything = load(folder, transform=step)[:]
    dataset = load(folder, sampler=samplers()[name], transform=step, batch_size=8)
    for _ in range(20):
        batch = dataset.sample()
        for key in ("nonterminal", "steps_to_next_obs", MASK, ("next", "reward"), ("next", "observation")):
            assert torch.equal(batch[key], everything[key][batch["index"]]), key


def test_whole_trajectories_have_the_same_targets(folder):
    step = MultiStepTransform(3, 0.9)
    rows, split = load(folder, transform=step)[:], load(folder, transform=step, split_trajs=True)[:]

    for key in ("nonterminal", "steps_to_next_obs", ("next", "observation")):
        assert torch.equal(split[key][split["mask"]], rows[key]), key


def test_returns_to_go_use_rewards_alone(folder):
    dataset = load(folder, transform=Reward2GoTransform(0.5, out_keys=[("to_go",)]))[:]
    rewards, wanted, start = dataset["next", "reward"][:, 0].tolist(), [], 0
    for steps, _, _ in SHAPES:
        stop = start + steps
        wanted += [sum(0.5**k * r for k, r in enumerate(rewards[row:stop])) for row in range(start, stop)]
        start = stop

    assert dataset["to_go"][:, 0].tolist() == pytest.approx(wanted)


def test_the_mask_marks_stacks_under_next_that_end_with_an_unknown_frame(folder):
    both = ["observation", ("next", "observation")]
    dataset = load(folder, transform=CatFrames(2, -2, both, [("stack",), ("next", "stack")]))[:]
    last = dataset["next", "stack"].reshape(len(dataset), -1)[:, -3:]

    assert torch.equal(last.any(-1, keepdim=True), dataset[MASK])
    assert dataset["stack"].all()


@pytest.mark.parametrize("padding", ["same", "constant"])
def test_stacks_of_the_future_use_the_last_known_frame(folder, padding):
    key = ("next", "observation")
    step = CatFrames(3, -2, [key], [("ahead",)], padding=padding, padding_value=-1, future=True)
    plain_rows = load(folder)[:]
    following, wanted, start = plain_rows[key], [], 0
    for steps, known, _ in SHAPES:
        stop = start + steps
        for row in range(start, stop):
            last = stop - 1 if known or row == stop - 1 else stop - 2
            fill = following[last] if padding == "same" else torch.full((3,), -1.0)
            wanted.append(torch.stack([following[at] if at <= last else fill for at in range(row, row + 3)]))
        start = stop

    for batch in (load(folder, transform=step)[:], step(plain_rows)):
        assert torch.equal(batch["ahead"], torch.stack(wanted))


def test_a_mixture_gives_the_mask_to_all_members(folder, complete):
    mixed = Mixture(load(complete), load(folder), batch_size=32)
    wanted = torch.tensor(mask_of())
    for _ in range(10):
        batch = mixed.sample()
        theirs = batch["index", "buffer_ids"] == 1
        assert batch[MASK][~theirs].all()
        assert torch.equal(batch[MASK][theirs, 0], wanted[batch["index", "index"][theirs]])
    assert all(one.everywhere for one in mixed.keys_of_members)


def test_targets_of_a_mixture_read_the_dataset_of_each_member(folder, complete):
    members = [load(one, transform=MultiStepTransform(3, 0.5)) for one in (complete, folder)]
    alone = [member[:] for member in members]
    batch = Mixture(*members, batch_size=64).sample()
    for number in (0, 1):
        mine = batch["index", "buffer_ids"] == number
        rows = batch["index", "index"][mine]
        for key in ("nonterminal", "steps_to_next_obs", ("next", "observation"), ("next", "reward")):
            assert torch.equal(batch[key][mine], alone[number][key][rows]), key
    assert batch[MASK][batch["index", "buffer_ids"] == 0].all()


def test_the_keys_of_an_ensemble_do_not_depend_on_the_members_drawn(folder, complete):
    online = TensorDictReplayBuffer(storage=LazyTensorStorage(10))
    online.extend(load(complete)[:])
    ensemble = ReplayBufferEnsemble(load(complete), load(folder), online, num_buffer_sampled=1, batch_size=4)
    keys = {frozenset(map(str, ensemble.sample().exclude("index").keys(True, True))) for _ in range(30)}

    assert len(keys) == 1
    assert MASK in ensemble.sample().keys(True, True)
    assert ensemble[:, 0:2][MASK].all()


def test_a_mixture_whose_members_leave_the_mask_out_has_none(folder, complete):
    select = [SelectTransform("observation", ("next", "reward")) for _ in range(2)]
    members = [load(one, transform=each) for one, each in zip((folder, complete), select, strict=True)]

    assert MASK not in Mixture(*members, batch_size=4).sample().keys(True, True)


def test_a_plain_buffer_keeps_what_it_is_given(folder):
    buffer = ReplayBuffer(storage=LazyTensorStorage(16), batch_size=16)
    buffer.extend(load(folder)[:])

    assert buffer[:][MASK][:, 0].tolist() == mask_of()


def test_the_table_marks_the_rows_with_a_known_next_state():
    records = EpisodeTable.from_lengths(np.array([2, 1, 3])).records
    records["final_known"] = [True, False, False]

    assert EpisodeTable(records).next_known(np.arange(6)).tolist() == [True, True, False, True, True, False]


# --- datasets without an observation, of which some states are unknown after the last step


@pytest.mark.parametrize(
    ("lengths", "known"),
    [
        ({("info", "qpos"): 3, ("info", "qvel"): 3}, True),
        ({("info", "qpos"): 3, ("info", "qvel"): 2}, False),
        ({("info", "qpos"): 2}, False),
        ({("observation",): 3, ("info", "qpos"): 2}, True),
        ({("observation",): 2, ("info", "qpos"): 3}, False),
        ({}, True),
    ],
)
def test_a_final_state_without_an_observation_is_known_only_if_every_state_is(lengths, known):
    steps = {("next", name): np.zeros((2, 1)) for name in ("reward", "terminated", "truncated")}
    episode = Episode(steps, {key: np.ones((length, 1)) for key, length in lengths.items()})

    assert episode.final_known is known


@pytest.mark.parametrize("keys", [["info.qpos", "next"], ["observation", "info.qpos", "next"]])
def test_a_selection_of_states_whose_last_ones_are_not_in_the_files_is_not_marked_as_known(tmp_path, keys):
    mujoco(tmp_path / "raw.hdf5")
    folder = download(
        "d4rl/halfcheetah-medium-v2",
        root=tmp_path / "d4rl",
        from_local=tmp_path / "raw.hdf5",
        hash_check=False,
        selection=Selection(keys=keys),
    )
    stored = StoredDataset(folder)
    known = stored.episodes["final_known"]

    assert known.any() == ("observation" in keys)
    assert not stored.final_states(("info", "qpos")).any()
    assert verify(folder).problems == ()


@pytest.mark.parametrize(("fields", "known"), [("info.joints", True), ("info.near", False), ("info", False)])
def test_states_of_a_file_of_the_user_are_known_only_if_all_have_values_after_the_last_step(
    tmp_path, monkeypatch, fields, known
):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    raw = tmp_path / "raw"
    raw.mkdir()
    states = np.arange(1, 13, dtype=np.float32).reshape(12, 1)
    arrays = {"observation": states, "joints": states, "near": states[:10], "action": states[:10], "ends": [4, 10]}
    np.savez(raw / "a.npz", reward=states[:10, 0], **arrays)
    (raw / "dataset.toml").write_text(
        '[episodes]\nby = "ends"\narray = "ends"\n[fields]\n'
        '"info.joints" = { array = "joints", state = true }\n"info.near" = { array = "near", state = true }\n'
    )
    stored = StoredDataset(download("local/arm", from_local=raw, selection=Selection(keys=[fields, "action", "next"])))

    assert stored.episodes["final_known"].tolist() == [known, known]
    for field in (field for field in stored.schema if field.shared):
        assert bool(stored.final_states(field.key).all()) == (field.key == ("info", "joints"))
    assert verify(stored.folder, deep=True).problems == ()
