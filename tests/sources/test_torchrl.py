"""Folders that TorchRL and tensordict write: which rows are steps, in which order, and what is asked or left out."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import tensordict
import torch
from raw.torchrl import draw, dumped, in_ted
from tensordict import NonTensorData, NonTensorStack, TensorDict

from datasets_rl import Selection, diff, download, export, identify, load
from datasets_rl.cli.app import main
from datasets_rl.errors import ConversionError
from datasets_rl.ted.episode import Episode
from datasets_rl.testing.sources import texts_of

LENGTHS = (5, 4, 6)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def drawn(lengths=LENGTHS, *, seed: int = 0, end: str = "terminated") -> list[Episode]:
    rng = np.random.default_rng(seed)
    return [draw(rng, length, end) for length in lengths]


def steps_of(lengths=LENGTHS, *, seed: int = 0) -> TensorDict:
    return in_ted(drawn(lengths, seed=seed))


def stored(folder: Path, **options: str):
    """Convert a folder, and return the stored dataset."""
    download(folder, selection=Selection(options=options), force=bool(options))
    return load(folder, download=False).stored


def counts(dataset) -> dict[str, int]:
    return {one.rule: one.count for one in dataset.manifest.decisions}


def refused(folder: Path, **options: str) -> tuple[str, str]:
    with pytest.raises(ConversionError) as caught:
        download(folder, selection=Selection(options=options))
    return "; ".join(caught.value.problems), str(caught.value.remedy)


def same_rows(
    dataset, steps: TensorDict, keys=("observation", "action", ("next", "observation"), ("next", "reward"))
) -> None:
    for key in keys:
        path = key if isinstance(key, tuple) else (key,)
        expected = steps[key].reshape(steps.shape.numel(), *steps[key].shape[steps.ndim :]).numpy()
        assert np.array_equal(dataset.column(path), expected), key


def test_rows_after_the_length_of_a_buffer_are_no_steps_whatever_they_hold(tmp_path):
    steps = steps_of()
    dumped(tmp_path / "buffer", steps, 20, 15, 15)
    storage = TensorDict.load_memmap(tmp_path / "buffer" / "storage")
    storage["observation"][15:] = 7.0

    dataset = stored(tmp_path / "buffer")

    same_rows(dataset, steps)
    assert counts(dataset)["unfilled-rows"] == 5
    assert dataset.episodes.lengths.tolist() == [5, 4, 6]


def test_a_full_buffer_begins_with_the_oldest_row(tmp_path):
    steps = steps_of()
    dumped(tmp_path / "buffer", torch.cat([steps[9:], steps[:9]]), 15, 15, 6)

    dataset = stored(tmp_path / "buffer")

    same_rows(dataset, steps)
    assert counts(dataset)["ring-unrolled"] == 15


@pytest.mark.parametrize("order", ["time first", "batch first"])
def test_the_dimension_of_time_is_the_one_along_which_states_continue(order, tmp_path):
    columns = [steps_of((3, 5), seed=1), steps_of((6, 2), seed=2), steps_of((8,), seed=3)]
    steps = torch.stack(columns, 1 if order == "time first" else 0)
    steps.memmap(tmp_path / "steps")

    dataset = stored(tmp_path / "steps")

    same_rows(dataset, torch.cat(columns))
    assert dataset.episodes.lengths.tolist() == [3, 5, 6, 2, 8]


def test_the_length_of_a_storage_counts_its_elements_or_its_items(tmp_path):
    items = torch.stack([steps_of((4,), seed=seed) for seed in range(3)])
    dumped(tmp_path / "items", items, 6, 3, 3)
    state = tmp_path / "items" / "storage" / "storage_metadata.json"
    state.write_text(json.dumps({"metadata": {}, "is_pytree": False, "len": 3}))  # a storage of one dimension

    same_rows(stored(tmp_path / "items"), items)

    dumped(tmp_path / "doubt", items, 6, 3, 3)
    (tmp_path / "doubt" / "writer" / "metadata.json").unlink()
    state = tmp_path / "doubt" / "storage" / "storage_metadata.json"
    state.write_text(json.dumps({"metadata": {}, "is_pytree": False, "len": 4}))
    problem, _ = refused(tmp_path / "doubt")
    assert "len = 4, which fit the shape in two ways [6, 4]" in problem


def test_a_batch_whose_states_show_no_dimension_of_time_is_asked_about(tmp_path):
    steps = torch.stack([steps_of((4,)), steps_of((4,), seed=1)])
    steps["observation"][:] = steps["next", "observation"][:] = 1.0
    steps.memmap(tmp_path / "steps")

    problem, remedy = refused(tmp_path / "steps")

    assert "which one counts the steps?" in problem
    assert "'time': '1'" in remedy
    assert stored(tmp_path / "steps", time="1").episodes.lengths.tolist() == [4, 4]
    steps.names = [None, "time"]
    steps.memmap(tmp_path / "named")
    assert stored(tmp_path / "named").episodes.lengths.tolist() == [4, 4]


def test_zeros_at_the_end_of_a_folder_without_a_length_are_asked_about(tmp_path):
    steps = steps_of()
    padded = torch.cat([steps, torch.zeros_like(steps[:7])])
    padded.memmap(tmp_path / "scratch")

    problem, _ = refused(tmp_path / "scratch")

    assert "its last 7 rows of 22 are zeros in every tensor" in problem
    same_rows(stored(tmp_path / "scratch", rows="filled"), steps)
    assert len(stored(tmp_path / "scratch", rows="all")) == 22


def test_the_padding_of_split_trajectories_is_left_out(tmp_path):
    episodes = [in_ted([one]) for one in drawn()]
    padded = torch.stack([torch.cat([one, torch.zeros_like(one[:1]).expand(6 - len(one)).clone()]) for one in episodes])
    padded["mask"] = torch.arange(6) < torch.tensor(LENGTHS)[:, None]
    padded.memmap(tmp_path / "split")

    dataset = stored(tmp_path / "split")

    same_rows(dataset, torch.cat(episodes))
    assert counts(dataset)["padding-of-trajectories"] == 3
    mask = padded["mask"].clone()
    mask[1, 1] = False
    padded["mask"] = mask
    padded.memmap(tmp_path / "holes", copy_existing=True)
    assert "mask is False at row 1 of [1], and True after it" in refused(tmp_path / "holes")[0]
    padded.reshape(-1).memmap(tmp_path / "flat")
    assert "mask is False at row 5 of []" in refused(tmp_path / "flat")[0]
    other = torch.cat(episodes)
    other["mask"] = torch.ones(15, 4, dtype=torch.bool)  # of actions
    other.memmap(tmp_path / "actions")
    same_rows(stored(tmp_path / "actions"), torch.cat(episodes))


def test_zeros_after_the_last_step_are_asked_about_unless_states_are_zeros(tmp_path):
    steps = steps_of()
    steps["next", "observation"][steps["next", "done"][:, 0]] = 0
    steps.memmap(tmp_path / "zeros")

    assert "next has zeros after the last step of 3 of 3 episodes" in refused(tmp_path / "zeros")[0]
    unknown, kept = (stored(tmp_path / "zeros", finals=value) for value in ("unknown", "stored"))
    assert unknown.episodes["final_known"].tolist() == [False] * 3
    assert counts(unknown)["final-placeholder"] == 3
    assert kept.episodes["final_known"].all()
    steps["observation"][0] = 0  # a state of the environment
    steps.memmap(tmp_path / "states")
    assert stored(tmp_path / "states").episodes["final_known"].all()


@pytest.mark.parametrize("timeouts", ["ends", "flags only"])
def test_the_placeholders_of_torchrls_d4rl_are_unknown_states(timeouts, tmp_path):
    episodes = drawn((5, 4, 6, 3), end="truncated" if timeouts == "flags only" else "terminated")
    rows = in_ted(episodes).exclude("episode", "info", ("next", "info"))
    # What D4RLExperienceReplay makes of flat rows: next is the following row, and zeros where next.done is set.
    steps = rows[:-1].clone()
    steps["next", "observation"] = rows["observation"][1:].clone()
    if timeouts == "flags only":
        steps["next", "done"] = steps["next", "terminated"].clone()
    steps["reward"] = torch.cat([torch.zeros(1, 1, dtype=torch.float64), steps["next", "reward"][:-1]])
    steps["next", "observation"][steps["next", "done"][:, 0]] = 0
    steps.memmap(tmp_path / "d4rl")

    dataset = stored(tmp_path / "d4rl")

    assert dataset.episodes.lengths.tolist() == [5, 4, 6, 2]
    assert dataset.episodes["final_known"].tolist() == [False, False, False, True]
    assert counts(dataset)["of-preceding-step"] == 4 * len(dataset)


def test_a_state_without_next_is_that_of_the_following_row_if_the_user_says_so(tmp_path):
    steps = steps_of().exclude(("next", "observation"), ("next", "info"))
    steps.memmap(tmp_path / "rows")

    assert "it has no next.observation, the state after the step" in refused(tmp_path / "rows")[0]
    dataset = stored(tmp_path / "rows", next="following")
    assert np.array_equal(dataset.column(("observation",)), steps["observation"].numpy())
    assert not dataset.episodes["final_known"].any()


def test_rows_in_no_order_are_refused_and_each_is_an_episode_if_the_user_says_so(tmp_path):
    order = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    steps = steps_of()[order].contiguous()
    steps.memmap(tmp_path / "numbers")
    steps.exclude("episode").memmap(tmp_path / "rows")

    assert "is interrupted at row" in refused(tmp_path / "numbers")[0]
    problem, remedy = refused(tmp_path / "rows")
    assert "next.observation at row" in problem
    assert "'order': 'none'" in remedy
    same_rows(stored(tmp_path / "rows", order="none"), steps)


def test_a_ring_without_a_cursor_is_refused(tmp_path):
    steps = steps_of((9, 6)).exclude("episode")
    ring = torch.cat([steps[9:], steps[:9]])  # the cursor is at the end of an episode
    ring["next", "terminated"][5] = ring["next", "done"][5] = True
    ring["next", "terminated"][14] = ring["next", "done"][14] = False
    ring["next", "observation"][14] = ring["observation"][0]
    ring["next", "info"][14] = ring["info"][0]
    dumped(tmp_path / "buffer", ring, 15, 15, 0)
    (tmp_path / "buffer" / "writer" / "metadata.json").unlink()

    assert "the rows are those of a ring" in refused(tmp_path / "buffer")[0]


def test_pickles_are_never_loaded_and_are_named(tmp_path):
    class Attack:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "attacked",))

    steps = steps_of()
    steps["note"] = NonTensorData("at night", batch_size=[15])
    steps["robot"] = NonTensorData(Path("/robot"), batch_size=[15])
    steps["notes"] = NonTensorStack(*map(Path, "abcdefghijklmno"))
    steps["task"] = NonTensorStack(*(["open", "close", "ö"][row % 3] for row in range(15)))
    steps.memmap(tmp_path / "steps")
    for name in ("robot/other.pickle", "notes/pickle.pkl"):
        (tmp_path / "steps" / name).write_bytes(pickle.dumps(Attack()))
    (tmp_path / "steps" / "prefetch.pkl").write_bytes(pickle.dumps(Attack()))

    dataset = stored(tmp_path / "steps")

    assert not (tmp_path / "attacked").exists()
    assert {"left-out robot", "left-out notes"} <= counts(dataset).keys()
    assert dataset.manifest.metadata["note"] == "at night"
    assert texts_of(dataset, ("task",))[:4].tolist() == ["open", "close", "ö", "open"]
    assert not [file.path for file in dataset.manifest.raw if file.path.endswith((".pickle", ".pkl"))]


def test_dtypes_that_numpy_lacks_keep_their_values(tmp_path):
    steps = steps_of()
    steps["observation"], steps["next", "observation"] = (
        values.bfloat16() for values in (steps["observation"], steps["next", "observation"])
    )
    steps["wide"] = torch.arange(15).to(torch.uint16)
    steps["spectrum"] = torch.zeros(15, 2, dtype=torch.float8_e5m2)
    steps.memmap(tmp_path / "steps")

    dataset = stored(tmp_path / "steps")

    assert np.array_equal(dataset.column(("observation",)), steps["observation"].float().numpy())
    assert dataset.column(("wide",)).tolist() == [*range(15)]
    assert "left-out spectrum" in counts(dataset)


def test_keys_with_odd_characters_stay_in_the_folder(tmp_path):
    steps = steps_of()
    steps["joint angle"] = torch.arange(15.0)
    steps["a.b"] = torch.arange(15.0)
    steps.memmap(tmp_path / "steps")
    meta = tmp_path / "steps" / "meta.json"
    document = json.loads(meta.read_text())
    (tmp_path / "outside.memmap").write_bytes(bytes(60))
    meta.write_text(json.dumps(document | {"../outside": document["a.b"]}))

    assert "../outside has no file ..%2Foutside.memmap" in refused(tmp_path / "steps")[0]
    meta.write_text(json.dumps(document))
    dataset = stored(tmp_path / "steps")
    assert dataset.column(("joint angle",)).tolist() == [*range(15)]
    assert "left-out a.b" in counts(dataset)


def test_what_is_stored_in_another_structure_is_refused_with_the_line_that_converts_it(tmp_path):
    tensordict.lazy_stack([*steps_of()]).memmap(tmp_path / "lazy")
    compact = steps_of()
    compact.batch_size = []
    compact["is_full"], compact["shift"] = NonTensorData(False), NonTensorData(15)
    compact.memmap(tmp_path / "compact")

    assert "it is a lazy stack" in refused(tmp_path / "lazy")[0]
    assert "Flat2TED" in refused(tmp_path / "compact")[1]


def test_a_folder_of_several_datasets_is_not_taken_for_one(tmp_path):
    for number, name in enumerate(("hopper", "walker")):
        steps_of(seed=number).memmap(tmp_path / "cache" / name)

    assert "several folders of steps, whose names are not numbered: hopper, walker" in refused(tmp_path / "cache")[0]
    download(tmp_path / "cache", selection=Selection(include="*walker/*"))
    same_rows(load(tmp_path / "cache", download=False).stored, steps_of(seed=1))


def test_info_shows_how_a_folder_is_read_before_anything_is_stored(tmp_path, home, capsys):
    dumped(tmp_path / "buffer", steps_of(), 20, 15, 15, index=True)

    assert main(["info", str(tmp_path / "buffer"), "--json"]) == 0
    read_as = json.loads(capsys.readouterr().out)["found"]["read_as"]

    assert {"key": "info.velocity", "array": "info/velocity", "dtype": "float64", "shape": [15, 2]} in read_as["fields"]
    assert {one["array"] for one in read_as["left_out"]} == {"done", "terminated", "truncated", "index"}
    assert read_as["episodes"] == 3
    assert not home.exists()


def test_an_export_for_torchrl_holds_the_same_episodes(tmp_path):
    folder = export(download("demo/pendulum"), "torchrl", tmp_path / "export", lossy=True)

    assert identify(folder).matches[0].exact == 75
    found = diff("demo/pendulum", folder)
    assert found.summary.startswith("different: 75 episodes in both, with equal values")
