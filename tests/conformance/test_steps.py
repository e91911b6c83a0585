"""Properties of every step: its output for an episode depends only on that episode, and is strict TED."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw.images import encoded

from datasets_rl import transforms
from datasets_rl.format.images import compressed as compressed_images
from datasets_rl.format.images import encoded as encoded_images
from datasets_rl.format.images.compressed import CompressedImages
from datasets_rl.format.images.encoded import EncodedColumn
from datasets_rl.preprocessing import steps as registry
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.functions import concatenate_batches
from datasets_rl.preprocessing.naming import describe_steps, make_step
from datasets_rl.preprocessing.recipe import Recipe
from datasets_rl.preprocessing.tensors import unshare
from datasets_rl.read.compressed_frames import FrameDictionary, compress
from datasets_rl.ted.episode import StoredImages
from datasets_rl.ted.episode_batch import EpisodeBatch

PIXELS = ("pixels",)
STATES = {
    ("observation",): ((3,), "f4"),
    ("goal", "achieved"): ((2,), "f8"),
    ("goal", "desired"): ((2,), "f8"),
    PIXELS: ((6, 8, 3), "u1"),
    ("light",): ((1, 4, 4), "f4"),
    ("state_value",): ((1,), "f4"),
}
STEPS = {("action",): ((2,), "f4"), ("success",): ((1,), "?"), ("text",): ((), "i4")}

WRITTEN: Mapping[str, tuple[dict[str, Any], ...]] = {
    "action_chunk": ({"chunk_size": 3},),
    "action_scaling": ({"loc": 0.5, "scale": 2.0},),
    "binarize_reward": ({}, {"threshold": 0.5}),
    "cast": (
        {"dtype": "float32", "only": "float64"},
        {"dtype": "float16"},
        {"dtype": "int32", "keys": ["success", "pixels"]},
    ),
    "cat_frames": ({"N": 3}, {"N": 3, "in_keys": ["observation", "action"], "dim": -1, "padding": "zeros"}),
    "center_crop": ({"w": 4},),
    "clip": ({"in_keys": ["observation"], "low": -0.5, "high": 0.5},),
    "compress_images": ({"keys": ["pixels"]}, {"keys": ["pixels"], "form": "raw"}),
    "concatenate": (
        {"key": "goal"},
        {"keys": ["observation", "goal.desired"]},
        {"keys": ["goal.achieved", "goal.desired"], "key": "goals", "dim": -1},
        {"keys": ["action", "success"], "key": "action"},
    ),
    "crop": ({"w": 3, "top": 1},),
    "delay_rewards": ({},),
    "discrete_action_projection": ({"num_actions_effective": 2, "max_actions": 4},),
    "drop_episodes": ({"numbers": [1]}, {"numbers": [0, "3:"]}),
    "drop_timeouts": ({},),
    "drop_unknown_final": ({}, {"ends": "truncated"}),
    "exclude": ({"keys": ["goal", "text"]},),
    "expand_as": ({"in_key": "success", "ref_key": "action"},),
    "flatten_action": ({"first_dim": -2, "in_keys": ["light"], "in_keys_inv": []},),
    "flatten_observation": ({"first_dim": -3, "last_dim": -1, "in_keys": ["pixels"]},),
    "frame_skip": ({"n": 2}, {"n": 3}),
    "gae": ({}, {"gamma": 0.9, "lmbda": 0.5, "advantage_key": "a.b", "value_target_key": "target"}),
    "gray_scale": ({},),
    "hindsight_goals": (
        {"strategy": "final", "achieved": "goal.achieved", "goal": "goal.desired", "within": 0.5},
        {"strategy": "future", "achieved": "goal.achieved", "goal": "goal.desired", "seed": 3},
    ),
    "init_tracker": ({},),
    "keep_episodes": ({"numbers": "0::2"},),
    "keep_lengths": ({"min": 2, "max": 4},),
    "keep_returns": ({"min": 0.0},),
    "keep_steps": ({"span": "1:3"}, {"span": "0:2"}),
    "keep_success": ({}, {"keep": False}),
    "keep_top_returns": ({"percent": 50.0}, {"percent": 60.0, "of": "steps"}),
    "keep_where": (
        {"key": "text", "test": "== open", "over": "first"},
        {"key": "action", "test": "> -0.5", "over": "last"},
    ),
    "linearise_rewards": ({"in_keys": ["next.reward"], "weights": [2.0]},),
    "n_step_targets": ({"n_steps": 1}, {"n_steps": 3}),
    "normalize": ({"keys": ["observation", "action"]},),
    "normalize_quantiles": ({}, {"keys": ["observation"], "low": 0.1, "high": 0.8, "unchanged": [-1]}),
    "normalize_range": ({}, {"eps": 0.5}),
    "observation_norm": ({"loc": [1.0, 2.0, 3.0], "scale": 2.0, "standard_normal": True},),
    "permute": ({"dims": [-1, -3, -2], "in_keys": ["pixels"]},),
    "rename": ({"old": "goal", "new": "target"},),
    "resize": ({"w": 5}, {"w": 4, "in_keys": ["pixels"]}),
    "returns_to_go": ({}, {"gamma": 0.9}, {"gamma": 0.9, "failure": -1.0}),
    "reward_clipping": ({"clamp_min": -0.5, "clamp_max": 0.5}, {"clamp_max": 0.0}),
    "reward_scaling": ({"scale": 2.0, "loc": 1.0},),
    "reward_sum": ({},),
    "scale_by_returns": ({"to": 10.0}, {"max_steps": 2}),
    "select": ({"keys": ["observation", "goal"]},),
    "sign": ({"in_keys": ["next.reward"]},),
    "split": ({"part": "train", "validation": 0.4}, {"part": "validation", "validation": 0.4}),
    "squeeze": ({"dim": -3, "in_keys": ["light"]},),
    "stack": ({"in_keys": ["goal.achieved", "goal.desired"], "out_key": "goals"},),
    "step_counter": ({},),
    "success_rewards": ({"otherwise": -1.0},),
    "target_return": ({"target_return": 10.0},),
    "td_lambda": ({}, {"lmbda": 1.0}),
    "time_max_pool": ({"T": 2},),
    "to_tensor_image": ({},),
    "to_uint8": ({},),
    "unsqueeze": ({"dim": -1, "in_keys": ["observation"]},),
}
LOOK = {
    "cat_frames",
    "center_crop",
    "crop",
    "flatten_observation",
    "gray_scale",
    "permute",
    "resize",
    "to_tensor_image",
}
"""Steps that change images, including `cast` if its arguments select them."""
TWICE = ({"strategy": "future"}, {"target_return": 10.0})
"""Steps whose states differ between t and t + 1, if only in the last digit, and are stored separately."""
CASES = [(name, arguments) for name, several in WRITTEN.items() for arguments in several]
EACH = pytest.mark.parametrize(
    ("name", "arguments"), CASES, ids=[f"{name}-{number}" for number, (name, _) in enumerate(CASES)]
)

lengths = st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.booleans()), min_size=1, max_size=6)


def block_of(shapes, seed=0):
    """Return a batch of episodes, given as (steps, final state known, terminated), with fields of every type."""
    draw = np.random.default_rng(seed)
    steps = np.array([one[0] for one in shapes])
    known = np.array([one[1] for one in shapes])
    count = int(steps.sum())
    ends = np.zeros((count, 1), bool)
    ends[np.cumsum(steps) - 1] = True
    terminated = ends & np.repeat([one[2] for one in shapes], steps)[:, None]

    def values(rows, shape, dtype):
        if dtype == "u1":
            return draw.integers(0, 256, (rows, *shape)).astype(dtype)
        if dtype == "?":
            return draw.random((rows, *shape)) > 0.7
        if dtype == "i4":
            return draw.integers(0, 2, (rows, *shape)).astype(dtype)
        return draw.random((rows, *shape)).astype(dtype) * (1 if shape == (1, 4, 4) else 2) - (shape != (1, 4, 4))

    final_states = {key: values(len(shapes), *one) for key, one in STATES.items()}
    for array in final_states.values():
        array[~known] = 0
    return EpisodeBatch(
        lengths=steps,
        steps={
            **{key: values(count, *one) for key, one in STEPS.items()},
            ("next", "reward"): (draw.random((count, 1)) * 2 - 1).astype("f4"),
            ("next", "terminated"): terminated,
            ("next", "truncated"): ends & ~terminated,
        },
        states={key: values(count, *one) for key, one in STATES.items()},
        final_states=final_states,
        final_known=known,
        metadata={"source": np.arange(len(shapes)) * 3},
        vocabulary={("text",): ("open", "close")},
    )


def as_png(block):
    """Return the same episodes with their images encoded as PNG."""

    def images(values, known):
        held = [encoded(one) if is_known else b"" for one, is_known in zip(values, known, strict=True)]
        return EncodedColumn(held, values.shape[1:], Path("pictures"))

    rows = images(block.states[PIXELS], [True] * block.count)
    ends = images(block.final_states[PIXELS], block.final_known)
    return replace(block, states={**block.states, PIXELS: rows}, final_states={**block.final_states, PIXELS: ends})


def as_zstd(block):
    """Return the same episodes with their images compressed."""
    dictionary = FrameDictionary()

    def images(values):
        data, ends = compress(values, dictionary)
        starts = np.append(np.zeros(1, np.int64), ends)[:-1]
        return CompressedImages(data, starts, ends, np.arange(len(ends)), dictionary, values.shape[1:], Path("frames"))

    rows, ends = images(block.states[PIXELS]), images(block.final_states[PIXELS]).without(~block.final_known)
    return replace(
        block,
        states={**block.states, PIXELS: rows},
        final_states={**block.final_states, PIXELS: ends},
        compressed=frozenset([PIXELS]),
    )


STORED = pytest.mark.parametrize("stored", [as_png, as_zstd], ids=["encoded", "compressed"])


def as_pixels(block):
    """Return the same episodes with all images decoded."""
    kinds = ("steps", "states", "final_states")
    return replace(
        block, **{kind: {key: np.asarray(one) for key, one in getattr(block, kind).items()} for kind in kinds}
    )


def fitted(name, arguments, *blocks):
    recipe = Recipe([make_step(name, (), arguments)])
    recipe.fit(lambda: iter(blocks))
    return recipe


def same(left, right):
    """Return whether episodes are equal to the last bit, and in how their images are stored."""
    if left is None or right is None:
        return left is right
    if left.compressed != right.compressed:
        return False
    kinds = ("steps", "states", "final_states", "metadata")
    if any(getattr(left, kind).keys() != getattr(right, kind).keys() for kind in kinds):
        return False
    pairs = [(getattr(left, kind)[key], getattr(right, kind)[key]) for kind in kinds for key in getattr(left, kind)]
    pairs += [(left.lengths, right.lengths), (left.final_known, right.final_known), (left.numbers, right.numbers)]
    return all(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)


@STORED
@EACH
def test_stored_images_give_the_result_of_their_pixels_and_keep_their_form_where_unchanged(name, arguments, stored):
    block = block_of([(3, True, True), (1, True, True), (4, False, False), (2, True, False), (5, True, True)], seed=2)
    wanted = fitted(name, arguments, block)(block)
    recipe = fitted(name, arguments, stored(block))
    came = recipe(stored(block))
    raw = arguments.get("form") == "raw"

    assert same(replace(as_pixels(came), compressed=wanted.compressed), wanted)
    compressed = {key for key, values in {**came.steps, **came.states}.items() if isinstance(values, CompressedImages)}
    if stored is as_zstd and name != "n_step_targets":
        assert came.compressed >= compressed
    if name in {"cat_frames", "crop", "resize"} and stored is as_zstd:
        assert came.compressed == {PIXELS}
    given = {image.tobytes() for image in (*block.states[PIXELS], *block.final_states[PIXELS])}
    for key, values in {**wanted.steps, **wanted.states}.items():
        unchanged = (
            values.shape[1:] == (6, 8, 3) and values.dtype == "u1" and {one.tobytes() for one in values} <= given
        )
        held = came.steps.get(key, came.states.get(key))
        assert isinstance(held, StoredImages) == (unchanged and not raw)
        if key in came.states:
            assert isinstance(came.final_states[key], StoredImages) == (unchanged and not raw)


@STORED
@EACH
def test_images_that_a_step_does_not_use_are_not_decoded(name, arguments, stored, monkeypatch):
    if name in LOOK or "pixels" in arguments.get("keys", ()):
        return
    block = stored(block_of([(3, True, True), (4, False, False), (2, True, False), (5, True, True)], seed=2))
    recipe = fitted(name, arguments, block)
    for module, decode in ((encoded_images, "_decode_images"), (compressed_images, "_decompress")):
        monkeypatch.setattr(module, decode, lambda *_: pytest.fail("it was decoded"))
    recipe(block)


def test_the_suite_covers_every_step_and_every_transform():
    missing, surplus = sorted(registry.STEPS.keys() - WRITTEN.keys()), sorted(WRITTEN.keys() - registry.STEPS.keys())
    assert not missing + surplus, f"add a case of {missing} to WRITTEN, which changes the drawn block; remove {surplus}"


def test_every_step_of_the_folder_and_every_transform_that_states_it_can_be_named():
    modules = [
        importlib.import_module(f"{package.__name__}.{one.name}")
        for package in (registry, transforms)
        for one in pkgutil.iter_modules(package.__path__)
    ]
    defined = {
        registry.snake(cls.__name__): cls
        for module in modules
        for cls in vars(module).values()
        if inspect.isclass(cls) and cls.__module__ == module.__name__ and not cls.__name__.startswith("_")
        if (issubclass(cls, Step) and not inspect.isabstract(cls)) or vars(cls).get("in_recipes")
    }

    assert {name: registry.step_class(name) for name in registry.STEPS} == defined, (
        "a step is a public class below the line @dataclass, and a transform is a step by the line in_recipes = True"
    )
    hidden = {cls.__name__ for cls in defined.values() if not issubclass(cls, Step)} - {*transforms.__all__}
    assert not hidden, f"import {sorted(hidden)} in datasets_rl/transforms/__init__.py, where type checkers find names"


def test_a_transform_with_another_rule_than_a_step_names_the_step():
    others = {
        registry.snake(name): getattr(transforms, name).instead
        for name in transforms.__all__
        if vars(getattr(transforms, name)).get("instead")
    }

    assert others == registry.INSTEAD
    assert registry.INSTEAD.keys().isdisjoint(registry.STEPS)
    assert registry.STEPS.keys() >= {*registry.INSTEAD.values()}


def test_every_step_is_described_in_one_sentence():
    assert all(0 < len(one.summary) < 120 and ". " not in one.summary for one in describe_steps())


@pytest.mark.first(1, of="name")
@EACH
@settings(max_examples=6)
@given(shapes=lengths, cut=st.integers(0, 6))
def test_the_output_does_not_depend_on_the_division_into_batches(name, arguments, shapes, cut):
    whole = block_of(shapes)
    spread = block_of([*shapes, (2, True, True), (3, True, False)], seed=1)
    recipe = fitted(name, arguments, whole, spread)
    numbers = np.arange(len(whole))
    parts = [whole.select_episodes(one) for one in (numbers < cut, numbers >= cut) if one.any()]
    came = [one for one in map(recipe, [whole, *parts]) if one is not None]
    # As for partials: a state that one of them stores separately is stored separately in all.
    twice = frozenset(key for one in came for key in one.steps if ("next", *key) in one.steps)
    came = [unshare(one, twice) for one in came]

    assert not came or same(came[0], concatenate_batches(came[1:]))


@EACH
@settings(max_examples=6)
@given(shapes=lengths)
def test_the_output_is_strict_ted_and_the_input_does_not_change(name, arguments, shapes):
    block, twin = block_of(shapes), block_of(shapes)
    came = fitted(name, arguments, block, block_of([(2, True, True), (3, True, False)], seed=1))(block)

    assert same(block, twin)
    if came is None:
        return
    ends = np.zeros(came.count, bool)
    ends[came.table.stops - 1] = True
    flags = [came.steps["next", flag] for flag in ("terminated", "truncated")]
    assert ((flags[0] | flags[1])[:, 0] == ends).all()
    assert all(one.dtype == bool and one.shape == (came.count, 1) for one in flags)
    assert came.steps["next", "reward"].dtype.kind == "f"
    assert came.steps["next", "reward"].shape == (came.count, 1)
    assert all(len(values) == came.count for values in (*came.steps.values(), *came.states.values()))
    assert came.states.keys() == came.final_states.keys()
    for key, final in came.final_states.items():
        assert final.shape[1:] == came.states[key].shape[1:]
        assert final.dtype == came.states[key].dtype
        assert not final[~came.final_known].any()
    assert set(came.vocabulary) <= {*came.steps, *came.states}
    unknown = set(block.numbers[~block.final_known].tolist())
    cut = came.numbers[~came.final_known].tolist()
    assert set(cut) <= unknown
    if name not in {"drop_timeouts", "drop_unknown_final", "keep_steps"}:
        assert came.final_known.tolist() == [bool(block.final_known[number]) for number in came.numbers]


@EACH
def test_a_step_changes_its_input(name, arguments):
    block = block_of([(3, True, True), (1, True, True), (4, False, False), (2, True, False), (5, True, True)], seed=2)
    block = as_zstd(block) if arguments.get("form") == "raw" else block

    assert not same(block, fitted(name, arguments, block)(block))


@EACH
def test_states_are_shared_where_the_step_commutes_with_time(name, arguments):
    block = block_of([(3, True, True), (4, False, False), (2, True, False), (5, True, True)], seed=2)
    came = fitted(name, arguments, block)(block)
    assert came is not None

    twice = [key for key in came.steps if ("next", *key) in came.steps]
    assert bool(twice) == any(one.items() <= arguments.items() for one in TWICE)


@EACH
def test_a_step_is_restored_from_its_entry_in_the_manifest(name, arguments):
    step = make_step(name, (), arguments)
    told = json.loads(json.dumps(step.to_json()))
    again = make_step(told.pop("use"), (), told)

    assert again.to_json() == step.to_json()
    block = block_of([(3, True, True), (4, False, False), (2, True, False)])
    one, two = Recipe([step]), Recipe([again])
    one.fit(lambda: [block])
    two.fit(lambda: [block])
    assert same(one(block), two(block))


@EACH
def test_a_pickled_step_keeps_its_fitted_parameters(name, arguments):
    block = block_of([(3, True, True), (4, False, False), (2, True, False)])
    recipe = fitted(name, arguments, block)
    sent = cloudpickle.loads(cloudpickle.dumps(recipe))

    assert same(sent(block), recipe(block))
    assert [*sent.fitted] == [*recipe.fitted]
