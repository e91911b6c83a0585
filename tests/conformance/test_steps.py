"""The contract of steps, for every step that recipes can name."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import pytest
from contract_classes import contract_classes

from datasets_rl import transforms
from datasets_rl.preprocessing import steps as registry
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.naming import describe_steps, make_step
from datasets_rl.preprocessing.recipe import Recipe
from datasets_rl.testing import StepCase, StepContract, block_of
from datasets_rl.testing.steps import THREE, differences

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
TWICE = ({"strategy": "future"}, {"target_return": 10.0})
"""Steps whose states differ between t and t + 1, if only in the last digit, and are stored separately."""
CASES = [(name, arguments) for name, several in WRITTEN.items() for arguments in several]
EACH = pytest.mark.parametrize(
    ("name", "arguments"), CASES, ids=[f"{name}-{number}" for number, (name, _) in enumerate(CASES)]
)


def case_of(name, arguments):
    return StepCase(
        partial(make_step, name, (), arguments),
        separate=any(one.items() <= arguments.items() for one in TWICE),
        ends_earlier=name in {"drop_timeouts", "drop_unknown_final", "keep_steps"},
        pixels=arguments.get("form") == "raw",
    )


ONCE = pytest.mark.first(1, of="case")


class TestSteps(StepContract):
    first: ClassVar = {
        "test_stored_images_give_the_result_of_their_pixels_and_keep_their_form_where_unchanged": ONCE,
        "test_images_that_a_step_does_not_use_are_not_decoded": ONCE,
        "test_a_pickled_step_keeps_its_fitted_parameters": pytest.mark.first(30),
    }
    cases: ClassVar = {f"{name}-{number}": case_of(name, arguments) for number, (name, arguments) in enumerate(CASES)}


def test_the_suite_covers_every_step_and_every_transform():
    elsewhere = " ".join(contract_classes("StepContract").values())
    missing = {name: registry.step_class(name).__name__ for name in registry.STEPS.keys() - WRITTEN.keys()}
    missing = {name for name, cls in missing.items() if not re.search(rf"\b{cls}\(|\"{name}\"", elsewhere)}

    assert not missing, (
        f"write a class derived from StepContract of datasets_rl.testing in the module of the step's own tests in "
        f"tests/preprocessing/, with a case that makes {', '.join(sorted(missing))}"
    )
    surplus = sorted(WRITTEN.keys() - registry.STEPS.keys())
    assert not surplus, f"WRITTEN in this module has cases of {', '.join(surplus)}, which are not steps; remove them"


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


def test_every_step_is_described_in_a_line_of_two_sentences_at_most():
    assert all(0 < len(one.summary) < 120 and one.summary.count(". ") < 2 for one in describe_steps())


@pytest.mark.first(1, of="name")
@EACH
def test_a_step_is_restored_from_its_entry_in_the_manifest(name, arguments):
    step = make_step(name, (), arguments)
    entry = json.loads(json.dumps(step.to_json()))
    again = make_step(entry.pop("use"), (), entry)

    assert again.to_json() == step.to_json()
    block = block_of(THREE)
    one, two = Recipe([step]), Recipe([again])
    one.fit(lambda: [block])
    two.fit(lambda: [block])
    assert differences(one(block), two(block)) == []
