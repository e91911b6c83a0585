"""The environment of the steps of a dataset, or the successor of the environment, for the evaluation of policies.

env_spec in the metadata, else environment in the metadata, else in the catalog  ->  id, arguments  ->  gymnasium.make
"""

from __future__ import annotations

import importlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from datasets_rl import sources
from datasets_rl.errors import EnvironmentWarning, InvalidArgumentError, MissingDependencyError, UnknownIdError
from datasets_rl.format.manifest import Manifest
from datasets_rl.libraries import importing

if TYPE_CHECKING:
    import gymnasium

_LIBRARIES = (
    (r"ALE/|.*NoFrameskip-|.*Deterministic-", "ale_py", "ale-py", "atari"),
    (
        r"Adroit|AntMaze|PointMaze|FrankaKitchen|Fetch|HandReach|HandManipulate",
        "gymnasium_robotics",
        "gymnasium-robotics",
        "robotics",
    ),
    (r"MiniGrid-|BabyAI-", "minigrid", "minigrid", "minigrid"),
    (r"dm_control/", "shimmy", "shimmy", "dm-control"),
    (
        r"(visual-)?(pointmaze|antmaze|humanoidmaze|antsoccer|cube|scene|puzzle|powderworld)-",
        "ogbench",
        "ogbench",
        "ogbench",
    ),
)
"""Libraries that register environments: pattern of the ids, module, name of the library, extra of this package."""

_SUCCESSORS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "HalfCheetah-v2": ("HalfCheetah-v4", {}),
    "Hopper-v2": ("Hopper-v4", {}),
    "Walker2d-v2": ("Walker2d-v4", {}),
    "Ant-v2": ("Ant-v4", {"use_contact_forces": True}),
    "door-v0": ("AdroitHandDoor-v1", {}),
    "hammer-v0": ("AdroitHandHammer-v1", {}),
    "pen-v0": ("AdroitHandPen-v1", {}),
    "relocate-v0": ("AdroitHandRelocate-v1", {}),
}
"""Environments of D4RL that only run with mujoco-py, and successors with the same observations, actions and rewards."""

_RECORDED_THROUGH: Mapping[str, tuple[tuple[str, str, Mapping[str, Any]], ...]] = {
    "atari_dqn": (("AtariPreprocessing", "gymnasium.wrappers.atari_preprocessing:AtariPreprocessing", {"noop_max": 0}),)
}
"""Wrappers of the recorded environments, by source. An observation of DQN is the maximum of two of four frames, in gray,
84 x 84."""

_OF_THE_RECORDING = ("render_mode", "num_envs", "vectorization_mode", "vector_kwargs")
"""Arguments of the recording program, not of the environment: rendering, and the number of parallel environments."""

_TEXT_ARGUMENTS = frozenset(
    {
        "camera_name",
        "control_mode",
        "desc",
        "domain_name",
        "game",
        "map_name",
        "maze_map",
        "obs_type",
        "reward_type",
        "task_name",
        "tasks_to_complete",
    }
)
"""Arguments that a dataset may state as a text, because the environment only accepts known names."""
_TEXT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_ -]{0,63}")
"""Texts that are neither a path nor a module."""
_MAX_NUMBER, _MAX_VALUES, _MAX_DEPTH = 10_000, 10_000, 4
_COUNT_OF_STEPS = re.compile(r"max_.*steps|max_num_frames.*|seed")
"""Arguments with large integers, which take no memory."""
_WRAPPERS = frozenset(
    {
        "AtariPreprocessing",
        "ClipAction",
        "ClipReward",
        "DelayObservation",
        "FilterObservation",
        "FlattenObservation",
        "FrameStackObservation",
        "GrayscaleObservation",
        "MaxAndSkipObservation",
        "OrderEnforcing",
        "PassiveEnvChecker",
        "RepeatAction",
        "RescaleAction",
        "RescaleObservation",
        "ReshapeObservation",
        "ResizeObservation",
        "StickyAction",
        "TimeAwareObservation",
        "TimeLimit",
    }
)
"""Wrappers of Gymnasium that a dataset may name, because these wrappers have no state, and write no files."""
_WRAPPER_TEXTS = frozenset({"dict_time_key", "filter_keys", "padding_type"})
_WATCHERS = frozenset({"HumanRendering", "RecordEpisodeStatistics", "RecordVideo", "RenderCollection"})
"""Wrappers of Gymnasium for the recording program, which change neither observations nor actions."""


@dataclass(frozen=True)
class NamedEnvironment:
    """An environment that a dataset names."""

    id: str
    """The id, such as ``Pendulum-v1``."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `gymnasium.make`."""
    wrappers: tuple[tuple[str, str, Mapping[str, Any]], ...] = ()
    """The wrappers of the environment, innermost first: name, ``module:class``, arguments."""


def named_environment(manifest: Manifest) -> NamedEnvironment:
    """Return the environment that a dataset names.

    A specification in the metadata, as stored by Minari and `RecordEpisodes`, also states arguments and wrappers.
    ``eval_env_spec``, the specification for evaluation, comes before ``env_spec``. Other datasets state only a name, in
    the metadata or in the catalog.

    Raises:
        InvalidArgumentError: If the dataset does not name an environment.
    """
    for name in ("eval_env_spec", "env_spec"):
        if environment := _from_specification(manifest.metadata.get(name)):
            return environment
    name = manifest.environment or _catalog_environment(manifest.id)
    if not name:
        raise InvalidArgumentError(
            f"{manifest.id} does not name an environment, neither in the metadata nor in the catalog",
            hint="make the environment with gymnasium.make, or name the environment of your own data in dataset.toml: "
            "environment = 'Pendulum-v1'",
        )
    return NamedEnvironment(name, {}, _RECORDED_THROUGH.get(manifest.id.partition("/")[0], ()))


def make_env(manifest: Manifest, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Return the environment of a dataset, as `BaseDatasetExperienceReplay.make_env` documents."""
    return make_named_env(named_environment(manifest), manifest.id, **kwargs)


def make_named_env(named: NamedEnvironment, dataset_id: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Return an environment that a dataset names, or the successor of the environment.

    Args:
        named: The environment.
        dataset_id: The dataset, for messages.
        kwargs: Arguments of `gymnasium.make`, which replace arguments of the dataset.

    Raises:
        MissingDependencyError: If the library of the environment is not installed.
        InvalidArgumentError: If no known library has the environment, or the dataset states an argument or a wrapper that
            data must not choose, such as a path.
    """
    with importing("gymnasium", "gymnasium", "make_env"):
        import gymnasium

    if ":" in named.id:  # gymnasium.make would import the module before the colon
        raise InvalidArgumentError(
            f"{dataset_id} names the environment {named.id!r}, expected a name without a module",
            hint="import the module that registers the environment, and name the environment without the module",
        )
    successor, arguments = _SUCCESSORS.get(named.id, (named.id, {}))
    if successor != named.id:
        warnings.warn(
            EnvironmentWarning(
                f"{dataset_id} names {named.id}, which needs mujoco-py: {successor} with a newer simulator is used instead"
            ),
            stacklevel=4,
        )
    stated = {name: value for name, value in named.arguments.items() if name not in kwargs}
    _check_arguments(stated, _TEXT_ARGUMENTS, f"{dataset_id} states for {named.id}")
    _register(successor, dataset_id)
    try:
        with warnings.catch_warnings():
            # The warning advises another version of the environment, with other steps than the dataset.
            warnings.filterwarnings("ignore", ".*is out of date", DeprecationWarning)
            env = gymnasium.make(successor, **{**arguments, **stated, **kwargs})
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingDependencyError(_missing_name(error), "mujoco", f"the environment {successor}") from error
    except gymnasium.error.UnregisteredEnv as error:
        raise InvalidArgumentError(
            f"{dataset_id} names the environment {named.id}, which is not registered: {error}",
            hint="import the module that registers the environment, or make the environment yourself",
        ) from error
    except (AssertionError, TypeError, ValueError) as error:
        shown = ", ".join(f"{name}={value!r:.50}" for name, value in {**stated, **kwargs}.items())
        raise InvalidArgumentError(
            f"{successor} cannot be made with the arguments of {dataset_id}, {shown or 'none'}: {error}",
            hint="replace an argument with make_env(NAME=value)",
        ) from error
    for name, entry_point, parameters in named.wrappers:
        env = _wrapped(env, name, entry_point, parameters, dataset_id)
    return env


def _check_arguments(arguments: Mapping[str, Any], text_names: frozenset[str], where: str) -> None:
    """Check that values in a dataset are numbers, or names that cannot be paths or modules.

    An environment may open a file or import a module that an argument names. Data must not choose files or modules.

    Args:
        arguments: The values by name.
        text_names: The names that may have texts.
        where: The dataset and the environment, for messages.
    """
    problems = [f"{name}={value!r:.80}" for name, value in arguments.items() if not _is_safe(name, value, text_names)]
    if problems:
        raise InvalidArgumentError(
            f"{where} {', '.join(problems)}: data may state numbers up to {_MAX_NUMBER:,} and known names, neither paths nor modules",
            hint=f"if you trust the value, pass the value: make_env({problems[0].partition('=')[0]}=...)",
        )


def _plain_items(value: Any, depth: int) -> Iterator[Any]:
    """Yield the values in lists and dicts, and the keys of dicts. Lists and dicts below `depth` are yielded whole."""
    if isinstance(value, (list, tuple)) and depth:
        for item in value:
            yield from _plain_items(item, depth - 1)
    elif isinstance(value, dict) and depth:
        for key, item in value.items():
            yield from _plain_items(key, 0)
            yield from _plain_items(item, depth - 1)
    else:
        yield value


def _is_safe(name: str, value: Any, text_names: frozenset[str]) -> bool:
    items = list(_plain_items(value, _MAX_DEPTH))
    return len(items) <= _MAX_VALUES and all(
        (name in text_names and bool(_TEXT.fullmatch(item))) if isinstance(item, str) else _is_small(name, item)
        for item in items
    )


def _is_small(name: str, value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) <= _MAX_NUMBER or bool(_COUNT_OF_STEPS.fullmatch(name))
    return value is None or isinstance(value, float)


def _from_specification(text: Any) -> NamedEnvironment | None:
    """Return the environment of a specification in the JSON of ``gymnasium.envs.registration.EnvSpec.to_json``.

    The id alone decides which code runs: the entry point in the text would make data import and call any function.
    """
    try:
        spec = json.loads(text)
        named, arguments = str(spec["id"]).rpartition(":")[2], dict(spec.get("kwargs") or {})
        stated = spec.get("additional_wrappers") or ()
        wrappers = tuple((item["name"], item["entry_point"], dict(item["kwargs"] or {})) for item in stated)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return None
    if isinstance(limit := spec.get("max_episode_steps"), int) and limit > 0:
        arguments["max_episode_steps"] = limit
    for name in _OF_THE_RECORDING:
        arguments.pop(name, None)
    return NamedEnvironment(named, arguments, wrappers)


def _catalog_environment(dataset_id: str) -> str:
    try:
        return sources.find(dataset_id).environment
    except UnknownIdError:  # the package of the source is not installed
        return ""


def _register(name: str, dataset_id: str) -> None:
    """Import the library that registers an environment."""
    import gymnasium

    if name in gymnasium.registry:
        return
    for start, module, library, extra in _LIBRARIES:
        if re.match(start, name):
            with importing(library, extra, f"the environment {name} of {dataset_id}", module=module):
                gymnasium.register_envs(importlib.import_module(module))


def _missing_name(error: Exception) -> str:
    return "mujoco" if "mujoco" in str(error).lower() else "a library of gymnasium"


def _wrapped(env: Any, name: str, entry_point: str, parameters: Mapping[str, Any], dataset_id: str) -> Any:
    """Return the environment in a wrapper of Gymnasium. Wrappers of other libraries give a warning."""
    import gymnasium.wrappers

    module, _, class_name = str(entry_point).partition(":")
    if not module.startswith("gymnasium.wrappers."):
        text = f"the wrapper {name} of {module} is not applied: wrap the environment yourself"
        warnings.warn(EnvironmentWarning(text), stacklevel=5)
        return env
    if class_name in _WATCHERS:
        return env
    if class_name not in _WRAPPERS:
        raise InvalidArgumentError(
            f"{dataset_id} names the wrapper {class_name}, which data must not choose",
            hint="make the environment with gymnasium.make, and apply the wrapper yourself",
        )
    _check_arguments(parameters, _WRAPPER_TEXTS, f"{dataset_id} states for {class_name}")
    try:
        return getattr(gymnasium.wrappers, class_name)(env, **parameters)
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingDependencyError("opencv-python-headless", "atari", f"the wrapper {class_name}") from error
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{dataset_id} names the wrapper {class_name} with wrong arguments: {error}"
        ) from error
