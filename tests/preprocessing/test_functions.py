"""`preprocess` with functions: allowed changes, stored history, and failures."""

from __future__ import annotations

import multiprocessing
import os
import random

import numpy as np
import pytest
import torch
from stored_data import Model, Whole, columns, plain, store_dataset, trajectory

from datasets_rl import disk
from datasets_rl.datasets.stored import StoredExperienceReplay
from datasets_rl.errors import InvalidArgumentError, PreprocessError
from datasets_rl.format.check import check_rules
from datasets_rl.format.integrity import check_files
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.preprocessing import Function, Recipe, dry_run, preprocess
from datasets_rl.preprocessing.steps.rewards import DelayRewards
from datasets_rl.progress import Report
from datasets_rl.store import restore, version_folder
from datasets_rl.ted.episode import Episode, TextStates
from datasets_rl.transforms import Compose, RewardClipping, RewardScaling

LENGTHS = ((5, True), (3, False), (8, True), (1, False), (4, True))


@pytest.fixture
def given():
    return [trajectory(steps, seed=number, known=known) for number, (steps, known) in enumerate(LENGTHS)]


@pytest.fixture
def folder(given, tmp_path):
    return store_dataset(tmp_path / "home" / "toy" / "data", given, columns()).folder.parent


@pytest.fixture
def dataset(folder):
    return StoredExperienceReplay(str(folder), batch_size=4)


def strict(folder):
    """Open a dataset and check all rules of TED."""
    stored = StoredDataset(folder)
    assert not check_files(folder, Report())
    assert not check_rules(stored.schema, stored.episodes, stored.column).problems
    return stored


def with_norm(step):
    return step.set("norm", step["observation"].norm(dim=-1))


def halved(step):
    """Halve the observations at t and at t + 1."""
    step["observation"] = step["observation"] / 2
    step["next", "observation"] = step["next", "observation"] / 2
    return step


def test_a_function_of_one_step_adds_a_field(dataset, given, folder):
    dataset.preprocess(with_norm, in_place=True)

    wanted = np.linalg.norm(Model(given).column(("observation",)), axis=1)
    assert np.allclose(dataset[:]["norm"], wanted)
    again = StoredExperienceReplay(str(folder), batch_size=4)
    assert again.sample()["norm"].shape == (4,)
    assert strict(folder).schema[("observation",)].shared


@pytest.mark.parametrize(
    "how", [{}, {"batched": True}, {"chunksize": 3}, {"chunksize": 0}, {"num_chunks": 4}, {"per": "episode"}], ids=str
)
def test_the_result_does_not_depend_on_the_batches_of_the_function(dataset, given, folder, how):
    dataset.preprocess(halved, **how, in_place=True)

    model = Model(given)
    batch = plain(dataset[:])
    assert np.array_equal(batch[("observation",)], model.column(("observation",)) / 2)
    assert np.array_equal(batch[("next", "observation")], model.column(("next", "observation")) / 2)
    assert strict(folder).schema[("observation",)].shared
    assert strict(folder).episodes["final_known"].tolist() == [known for _, known in LENGTHS]


def test_states_that_differ_at_the_next_step_are_stored_separately(dataset, given, folder):
    dataset.preprocess(lambda step: step.set("observation", step["observation"] + 1), in_place=True)

    stored, model = strict(folder), Model(given)
    assert not stored.schema[("observation",)].shared
    assert np.array_equal(stored.column(("observation",)), model.column(("observation",)) + 1)
    assert np.array_equal(stored.column(("next", "observation")), model.column(("next", "observation")))


def test_episodes_of_one_step_do_not_determine_what_is_shared(dataset, given, folder):
    dataset.preprocess(
        lambda episode: episode.set("observation", episode["observation"] + 1), per="episode", in_place=True
    )

    stored, model = strict(folder), Model(given)
    assert np.array_equal(stored.column(("observation",)), model.column(("observation",)) + 1)
    assert np.array_equal(stored.column(("next", "observation")), model.column(("next", "observation")))


@pytest.mark.parametrize("step", ["keep_top_returns", "scale_by_returns", "concatenate", "normalize"])
def test_a_step_without_episodes_to_fit_is_an_error(folder, step):
    with pytest.raises(PreprocessError, match=f"no episodes are left to fit step 1 .{step}. to"):
        preprocess(folder, Recipe.inline(["keep_lengths:100", step]), in_place=True)


def test_the_run_restarts_if_a_function_stops_commuting_in_a_later_partial(folder, given):
    def late(step):
        change = 1.0 if step["next", "reward"].item() == float(given[2].steps["next", "reward"][3, 0]) else 0.0
        return step.set("observation", step["observation"] + change)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dry_run, "_BYTES", 1)
        preprocess(folder, Recipe([late]), num_parts=5, in_place=True)

    stored, model = strict(folder), Model(given)
    wanted = model.column(("observation",)).copy()
    wanted[5 + 3 + 3] += 1
    assert np.array_equal(stored.column(("observation",)), wanted)
    assert np.array_equal(stored.column(("next", "observation")), model.column(("next", "observation")))


def test_functions_of_episodes_drop_split_and_shorten_them(dataset, given, folder):
    def pieces(episode):
        if len(episode) == 3:
            return None
        return [episode[:2], episode[2:]] if len(episode) > 4 else episode

    dataset.preprocess(pieces, per="episode", in_place=True)

    stored = strict(folder)
    assert stored.episodes.lengths.tolist() == [2, 3, 2, 6, 1, 4]
    assert stored.episodes["source"].tolist() == [0, 0, 2, 2, 3, 4]
    assert stored.episodes["final_known"].tolist() == [True, True, True, True, False, True]
    # The cut episode continues, so the state after the cut is known.
    assert np.array_equal(stored.column(("next", "observation"))[1], given[0].states[("observation",)][2])
    assert stored.column(("next", "truncated"))[1, 0]


def ended_behind(episode, steps):
    episode["next", "truncated"][steps - 1] = True
    return episode


@pytest.mark.parametrize(
    ("change", "known"),
    [
        (lambda episode: episode[:2], [True]),
        (lambda episode: episode[1:], [False]),
        (lambda episode: [episode[:1], episode[1:]], [True, False]),
        (lambda episode: [episode[2:], episode[:2]], [False, True]),
        (lambda episode: [episode, episode.clone()], [False, False]),
        (lambda episode: torch.cat([episode, episode]), [False, False]),
        (lambda episode: ended_behind(episode, 1), [True, False]),
        (lambda episode: torch.cat([ended_behind(episode, 1), episode[1:]]), [True, False, False]),
    ],
    ids=["head", "tail", "cut", "turned", "copies", "copies in one", "an end within", "both"],
)
def test_the_final_state_is_unknown_only_if_the_last_step_is_kept(tmp_path, change, known):
    given = [trajectory(3, seed=1, known=False)]
    folder = store_dataset(tmp_path / "toy" / "data", given, columns()).folder.parent
    preprocess(folder, Recipe([Function(change, "episode")]), in_place=True)

    stored = strict(folder)
    assert stored.episodes["final_known"].tolist() == known
    roots, following = (stored.column(key) for key in (("observation",), ("next", "observation")))
    states = given[0].states[("observation",)]
    after = {state.tobytes(): one for state, one in zip(states, [*states[1:], np.zeros(3, np.float32)], strict=True)}
    assert all(np.array_equal(after[root.tobytes()], one) for root, one in zip(roots, following, strict=True))


def test_end_flags_that_a_function_sets_split_episodes(dataset, folder):
    def relabel(episode):
        at_goal = torch.zeros_like(episode["next", "terminated"])
        at_goal[len(episode) // 2] = len(episode) > 4
        episode["next", "terminated"] = at_goal
        episode["next", "truncated"] = torch.zeros_like(at_goal)
        episode["next", "reward"] = at_goal.float()
        return episode

    dataset.preprocess(relabel, per="episode", in_place=True)

    stored = strict(folder)
    assert stored.episodes.lengths.tolist() == [3, 2, 3, 5, 3, 1, 4]
    assert stored.episodes["return"].tolist() == [1, 0, 0, 1, 0, 0, 0]
    assert stored.column(("next", "terminated"))[:, 0].sum() == 2


def test_fields_are_dropped_cast_and_reshaped(dataset, folder):
    def changed(step):
        step = step.exclude(("next", "observation"))
        step["observation"] = step["observation"].double().reshape(1, 3)
        step["action"] = (step["action"] * 10).to(torch.int16)
        return step

    dataset.preprocess(changed, in_place=True)

    schema = strict(folder).schema
    assert (schema[("observation",)].dtype, schema[("observation",)].shape) == (np.dtype("f8"), (1, 3))
    assert schema[("action",)].dtype == np.dtype("i2")
    assert ("next", "observation") not in schema


def test_the_destination_gets_the_result_and_the_dataset_does_not_change(dataset, folder, tmp_path):
    before = strict(folder).manifest
    storage = dataset.preprocess(with_norm, dest=tmp_path / "elsewhere")

    assert storage[:]["norm"].shape == (21,)
    assert strict(folder).manifest == before
    assert dataset.sample().get("norm", None) is None
    assert strict(tmp_path / "elsewhere").manifest.history[0]["of"]["id"] == "toy/data"


def test_a_destination_with_other_content_is_refused(dataset, folder, tmp_path):
    before = strict(folder).manifest
    raw = store_dataset(tmp_path / "raw", [trajectory(3)]).folder.parent
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "file").write_text("x")

    for dest, problem in {
        folder: "is the folder of the dataset itself",
        folder / ".." / "data": "is the folder of the dataset itself",
        tmp_path / "link": "is the folder of the dataset itself",
        version_folder(folder) / "inside": "is inside a dataset",
        raw: "a dataset that is not the result of a recipe",
        tmp_path / "file": "files that are not a dataset",
    }.items():
        with pytest.raises(InvalidArgumentError, match=problem):
            dataset.preprocess(with_norm, dest=dest)
    assert strict(folder).manifest == before
    assert len(strict(raw)) == 3


def test_a_buffer_shows_the_version_that_it_restores(dataset):
    dataset.preprocess(with_norm, in_place=True)
    assert "norm" in dataset

    assert dataset.restore() is dataset
    assert "norm" not in dataset
    assert "norm" in dataset.restore(2)
    with pytest.raises(InvalidArgumentError, match="no version 7"):
        dataset.restore(7)
    assert "norm" in dataset


def test_an_undo_that_dies_can_be_repeated(dataset, folder, monkeypatch):
    before = strict(folder).manifest
    dataset.preprocess(with_norm, in_place=True)

    def dies(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(disk.atomic, "publish_file", dies)
        with pytest.raises(KeyboardInterrupt):
            restore(folder)
    restore(folder)
    assert strict(folder).manifest == before


def test_a_function_that_fails_is_reported_with_its_position_and_changes_nothing(dataset, folder):
    before = strict(folder).manifest

    def fails(step):
        if step["episode"] == 2:
            raise ValueError("no such thing")
        return step

    with pytest.raises(
        PreprocessError,
        match=r"step 0 \(function .*fails, test_functions.py:\d+\) at episode 2, with fields .*observation.*: ValueError: no such thing",
    ):
        dataset.preprocess(fails, in_place=True)
    assert strict(folder).manifest == before
    dataset.preprocess(with_norm, in_place=True)
    assert ("norm",) in strict(folder).schema


@pytest.mark.parametrize(
    ("fn", "problem"),
    [
        (lambda step: step.exclude(("next", "reward")), "next.reward is missing"),
        (lambda step: step["observation"], "it returned a Tensor, expected a TensorDict"),
        (lambda _: None, "it returned a NoneType"),
        (lambda step: step.set("done", torch.ones(1, dtype=torch.bool)), "done is True in some steps"),
        (lambda step: step.set("name", "x"), "name is not a tensor"),
        (lambda step: step.exclude(("next", "terminated"), ("next", "truncated"), ("next", "done")), "are missing"),
    ],
    ids=["no-reward", "tensor", "none", "root-done", "text", "no-ends"],
)
def test_results_that_are_not_a_dataset_are_refused(dataset, folder, fn, problem):
    before = strict(folder).manifest
    with pytest.raises(PreprocessError, match=problem):
        dataset.preprocess(fn, in_place=True)
    assert strict(folder).manifest == before


def test_the_first_steps_alone_are_a_preview(dataset, given, tmp_path):
    dataset.preprocess(halved, num_frames=7, dest=tmp_path / "first")

    stored = strict(tmp_path / "first")
    assert stored.episodes.lengths.tolist() == [5, 2]
    assert np.array_equal(stored.column(("next", "observation"))[6], given[1].states[("observation",)][2] / 2)
    assert stored.column(("next", "truncated"))[:, 0].tolist() == [False] * 4 + [True, False, True]


@pytest.mark.usefixtures("warm_python")
def test_the_result_does_not_depend_on_processes_and_partials(folder, tmp_path):
    scale = 3.0
    recipe = Recipe([lambda step: step.set("scaled", step["action"] * scale)])
    one = preprocess(folder, recipe, out=tmp_path / "one", num_parts=4)
    two = preprocess(folder, recipe, out=tmp_path / "two", num_parts=4, jobs=2)

    assert strict(one).manifest.files == strict(two).manifest.files
    assert strict(one).manifest.statistics == strict(two).manifest.statistics


@pytest.mark.usefixtures("warm_python")
def test_a_pool_of_the_caller_runs_the_tasks(dataset, tmp_path):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        dataset.preprocess(with_norm, pool=pool, dest=tmp_path / "pooled")
    assert ("norm",) in strict(tmp_path / "pooled").schema


def test_random_numbers_of_a_function_depend_only_on_the_seed(dataset, tmp_path):
    def noisy(step):
        return step.set("noise", torch.randn(2))

    torch.manual_seed(7)
    wanted = torch.rand(1)
    torch.manual_seed(7)
    generators = [torch.Generator().manual_seed(number) for number in (1, 1, 2)]
    drawn = [
        dataset.preprocess(noisy, generator=one, dest=tmp_path / f"{n}")[:]["noise"] for n, one in enumerate(generators)
    ]

    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(torch.rand(1), wanted)


@pytest.mark.usefixtures("warm_python")
def test_random_numbers_of_numpy_and_python_are_the_same_in_any_process(folder, tmp_path):
    def noisy(step):
        return step.set("noise", torch.tensor([np.random.rand(), random.random()]))  # noqa: NPY002 -- users write such code

    recipe = Recipe([noisy])
    one, two = (
        StoredDataset(preprocess(folder, recipe, out=tmp_path / str(jobs), jobs=jobs, num_parts=3)) for jobs in (1, 2)
    )
    assert np.array_equal(one.column(("noise",)), two.column(("noise",)))


@pytest.mark.parametrize(
    ("text", "name"), [("raise SystemExit(0)", "own.py:fn"), ("\udcff", "own.toml")], ids=["exit", "no-text"]
)
def test_a_file_that_is_not_a_recipe_is_refused(tmp_path, text, name):
    (tmp_path / name.partition(":")[0]).write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(InvalidArgumentError, match=r"own\.(py cannot be imported|toml cannot be read as TOML)"):
        Recipe.of(str(tmp_path / name))


OWN = """
from dataclasses import dataclass, replace
from datasets_rl import Recipe
from datasets_rl.preprocessing import Step
from datasets_rl.preprocessing.steps.keep import KeepReturns

@dataclass
class Doubled(Step):
    by: int = 2
    def __call__(self, block):
        return replace(block, steps={**block.steps, ("doubled",): block.steps["action",] * self.by})

@dataclass
class Needs(Step):
    by: int
    def __call__(self, block):
        return block

several = [Doubled, Recipe([Doubled(3)]), KeepReturns()]
both = Recipe([Doubled()])
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return str(tmp_path / "own.py")


@pytest.mark.parametrize("name", ["Doubled", "several", "both"])
def test_a_class_an_object_and_a_recipe_of_a_file_are_steps(own, folder, name):
    stored = strict(preprocess(folder, Recipe.of(f"{own}:{name}"), in_place=True))
    times = 3 if name == "several" else 2
    assert np.array_equal(stored.column(("doubled",)), stored.column(("action",)) * times)


@pytest.mark.parametrize("end", ["", ":", ":other"])
def test_an_unknown_name_in_a_python_file_is_an_error_with_the_known_names(own, end):
    with pytest.raises(InvalidArgumentError, match=r"own\.py (was given without a name|has no 'other')") as caught:
        Recipe.of(own + end)
    assert caught.value.hint == "it has own.py:Doubled, own.py:Needs, own.py:several, own.py:both"


@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_function_that_fails_is_named_with_its_line(folder, tmp_path, jobs):
    (tmp_path / "mine.py").write_text(
        "def third(row):\n    return row[2]\n\n\ndef fn(step):\n    return step.set('z', third(step['action']))\n"
    )
    said = r"step 0 \(function fn, mine\.py:2\) at episode 0, with fields action, .*: IndexError"
    with pytest.raises(PreprocessError, match=said):
        preprocess(folder, Recipe.of(f"{tmp_path / 'mine.py'}:fn"), jobs=jobs, num_parts=2, in_place=True)


def test_with_zero_workers_the_function_runs_in_this_process(dataset):
    dataset.preprocess(lambda step: step.set("process", torch.tensor(os.getpid())), num_workers=0, in_place=True)
    assert (dataset[:]["process"] == os.getpid()).all()


def test_a_class_of_a_step_that_needs_arguments_is_named(own):
    with pytest.raises(InvalidArgumentError, match=r"the step Needs needs arguments: .*'by'"):
        Recipe.of(f"{own}:Needs")


def test_a_dataset_accepts_a_step_its_class_a_recipe_and_a_name(dataset, tmp_path):
    wanted = dataset.preprocess(Recipe([RewardScaling(loc=-1.0)]), dest=tmp_path / "recipe")[:]
    for number, given in enumerate(["iql_antmaze", RewardScaling(loc=-1.0)]):
        came = dataset.preprocess(given, dest=tmp_path / str(number))[:]
        assert torch.equal(came["next", "reward"], wanted["next", "reward"])
    delayed = [
        dataset.preprocess(given, dest=tmp_path / kind)[:]
        for kind, given in (("class", DelayRewards), ("step", DelayRewards()))
    ]
    assert torch.equal(delayed[0]["next", "reward"], delayed[1]["next", "reward"])
    with pytest.raises(InvalidArgumentError, match="a recipe determines the input"):
        dataset.preprocess(DelayRewards(), batched=True, in_place=True)


@pytest.mark.parametrize("how", [{}, {"batched": True}, {"chunksize": 7}], ids=str)
def test_a_dataset_accepts_a_transform(dataset, given, how):
    dataset.preprocess(
        Compose(RewardClipping(-0.5, 0.5), lambda batch: batch.set("two", batch["action"] * 2)), **how, in_place=True
    )

    model = Model(given)
    assert np.array_equal(dataset[:]["next", "reward"], model.column(("next", "reward")).clip(-0.5, 0.5))
    assert np.array_equal(dataset[:]["two"], model.column(("action",)) * 2)


def test_a_step_that_cannot_be_fitted_is_an_error_with_the_existing_fields(folder):
    with pytest.raises(PreprocessError, match=r"step 0 \(normalize\), with fields action, .*: there is no field speed"):
        preprocess(folder, Recipe.inline(["normalize:speed"]), in_place=True)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"dim": 1}, "dim is 1"),
        ({"chunksize": 2, "num_chunks": 2}, "exclude each other"),
        (
            {"num_workers": -1, "mp_start_method": "thread"},
            "num_workers is -1, expected at least 0; mp_start_method is 'thread'",
        ),
        ({"batched": True, "per": "episode"}, "batched is True and per is 'episode'"),
        ({"num_frames": 0}, "num_frames is 0"),
        ({"per": "row"}, "per is 'row'"),
        ({"per": "step", "chunksize": 4}, "per is 'step', but chunksize and num_chunks are for functions of a batch"),
        ({"per": "episode", "num_chunks": 4}, "per is 'episode', but chunksize and num_chunks are for"),
        ({"batched": True, "chunksize": 0}, "chunksize is 0, which passes single steps"),
        ({"chunksize": -2}, "chunksize is -2, expected at least 0"),
        ({"pool": object(), "num_workers": 2}, "a pool brings its own processes: num_workers"),
    ],
    ids=[
        *("dim", "chunks", "several", "batched", "frames", "per"),
        *("steps", "episodes", "single", "negative", "pool"),
    ],
)
def test_contradictory_arguments_are_refused(dataset, arguments, problem):
    with pytest.raises(InvalidArgumentError, match=problem):
        dataset.preprocess(with_norm, **arguments, in_place=True)


@pytest.mark.parametrize(
    ("step", "key", "expected"),
    [
        (Function(lambda episode: episode[[0, 2, 3]], per="episode"), ("next", "lang"), "0b 0d 0e 1b 1d 1e"),
        ("n_step_targets:2", ("n_step", "lang"), "0c 0d 0e 0e 1c 1d 1e 1e"),
    ],
)
def test_texts_of_later_states_stay_texts(step, key, expected, tmp_path):
    """Two datasets, whose numbers of texts differ: a, b, c, d and the final text e, after the number of the dataset."""
    lang = Column(("lang",), np.dtype(np.int32), (), shared=True, text=True)

    def stored(number):
        one, texts = trajectory(4), TextStates.from_texts([f"{number}{letter}" for letter in "abcde"])
        episode = Episode(one.steps, {**one.states, lang.key: texts})
        return store_dataset(tmp_path / str(number), [Whole(episode)], columns(lang)).folder

    recipe = Recipe.inline([step]) if isinstance(step, str) else Recipe([step])

    result = StoredDataset(preprocess([stored(0), stored(1)], recipe, out=tmp_path / "out"))

    assert [result.texts(key)[code] for code in result.column(key)] == expected.split()
