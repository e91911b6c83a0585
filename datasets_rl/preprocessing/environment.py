"""The environment of a dataset with the steps of the recipes: observations and actions are as in the dataset.

environment  --- observation ---> steps, in order ---------------> policy
             <------ action ----- their inverses, last step first <---

A description of both is plain data: a checkpoint holds the description, and needs no dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from datasets_rl.catalog.environments import NamedEnvironment, make_named_env, named_environment
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.manifest import Manifest
from datasets_rl.preprocessing.base import DataStep
from datasets_rl.preprocessing.naming import make_step
from datasets_rl.ted.keys import dotted_name

if TYPE_CHECKING:
    import gymnasium

_WRAPPER = "datasets_rl.preprocessing.wrapper:PreprocessedEnv"
_HINT = (
    "make_env(steps=False) makes the environment without the steps of the dataset: its observations and actions are"
    " then not those that a policy was trained on"
)


def describe_env(manifest: Manifest, read_value: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the environment of a dataset and the steps that preprocessed the dataset. See `make_env`.

    Args:
        manifest: The manifest of the dataset.
        read_value: A function that returns a value of the metadata, an array if the value names an array file.

    Raises:
        InvalidArgumentError: If the dataset names no environment, or is a merge of datasets with different steps.
    """
    named = named_environment(manifest)
    wrappers: list[list[Any]] = [[*wrapper] for wrapper in named.wrappers]
    # The dataset may be recorded in the environment of a preprocessed dataset, whose steps come first.
    recorded = wrappers.pop()[2].get("steps", ()) if wrappers and wrappers[-1][1] == _WRAPPER else ()
    if any(wrapper[1] == _WRAPPER for wrapper in wrappers):
        raise InvalidArgumentError(
            f"{manifest.id} was recorded with wrappers around a preprocessed environment",
            hint="make the environment of the dataset that was preprocessed, and wrap it yourself",
        )
    described = _described_steps(manifest.id, manifest.history, manifest.metadata, read_value, "")
    fields = {
        dotted_name(column.key): {
            "dtype": column.read_dtype.name,
            "shape": list(column.shape),
            "text": column.text,
        }
        for column in manifest.schema
    }
    return {
        "dataset": manifest.id,
        "environment": {"id": named.id, "arguments": dict(named.arguments), "wrappers": wrappers},
        "steps": [*recorded, *described],
        "fields": fields,
    }


def make_env(description: Mapping[str, Any], *, steps: bool = True, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Return the environment of a description. See `BaseDatasetExperienceReplay.describe_env`.

        >>> description = load("demo/pendulum@td3_bc").describe_env()       # plain data, which a checkpoint can hold
        >>> env = make_env(description)                                     # without the dataset

    Args:
        description: The description of the environment of a dataset.
        steps: Whether the steps that preprocessed the dataset are applied to observations and actions.
        **kwargs: Arguments of `gymnasium.make`, which replace the arguments of the dataset.

    Raises:
        InvalidArgumentError: If a step cannot be applied to an environment, or there is no such environment.
        MissingDependencyError: If a library is not installed. The error names the extra.
    """
    named, dataset_id = description["environment"], str(description["dataset"])
    environment = NamedEnvironment(named["id"], named["arguments"], tuple(tuple(item) for item in named["wrappers"]))
    env = make_named_env(environment, dataset_id, **kwargs)
    if not steps or not description["steps"]:
        return env
    from datasets_rl.preprocessing.wrapper import PreprocessedEnv

    try:
        preprocessed = PreprocessedEnv(env, description["steps"], description["fields"])
    except InvalidArgumentError as error:
        env.close()
        message = f"{dataset_id} is preprocessed, and its environment cannot be: {error.message}"
        raise InvalidArgumentError(message, hint=_HINT) from error
    return preprocessed if preprocessed.is_changed else env


def describe_changes(manifest: Manifest, read_value: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """Return the steps of the recipes of a dataset that can change observations or actions, as in `describe_env`.

    Two datasets with equal steps, fitted parameters included, have observations and actions in the same units.

    Args:
        manifest: The manifest of the dataset.
        read_value: See `describe_env`.

    Raises:
        InvalidArgumentError: If the dataset is a merge of datasets with different steps.
    """
    described = _described_steps(manifest.id, manifest.history, manifest.metadata, read_value, "")
    return [one for one in described if _can_change(one["step"])]


def _can_change(step: Mapping[str, Any]) -> bool:
    """Return whether a step can change observations or actions. A function of the user can."""
    if step.get("environment") == "unchanged":
        return False
    if "digest" in step:
        return True
    arguments = {name: value for name, value in step.items() if name != "use"}
    return not isinstance(make_step(step["use"], (), arguments), DataStep)


def _described_steps(
    dataset_id: str,
    history: Sequence[Mapping[str, Any]],
    metadata: Mapping[str, Any],
    read_value: Callable[[Any], Any],
    prefix: str,
) -> Iterator[dict[str, Any]]:
    """Yield the steps of a history as in the recipes, each with the fitted parameters and the place for messages.

    Args:
        dataset_id: The dataset, for messages.
        history: The history of the dataset, or of a member of a merge.
        metadata: The metadata with the fitted parameters.
        read_value: See `describe_env`.
        prefix: Start of the names of the metadata of a member.
    """
    for run, entry in enumerate(history):
        if "merged" in entry:
            members = [
                list(
                    _described_steps(
                        member["id"], member.get("history", ()), metadata, read_value, f"{prefix}{number}/"
                    )
                )
                for number, member in enumerate(entry["merged"])
            ]
            if any(member != members[0] for member in members[1:]):
                raise InvalidArgumentError(
                    f"{dataset_id} is a merge of datasets with different steps: no environment has the observations of all"
                )
            yield from members[0]
            continue
        recipe = entry["recipe"]
        for number, step in enumerate(recipe["steps"]):
            start = f"{prefix}preprocess/{run}/{number}.{step['use']}/"
            fitted = {
                name.removeprefix(start): _plain_value(read_value(value))
                for name, value in metadata.items()
                if name.startswith(start)
            }
            yield {"step": dict(step), "fitted": fitted, "label": f"step {number} ({step['use']}) of {recipe['name']}"}


def _plain_value(value: Any) -> Any:
    """Return a value of the metadata as JSON has it. Arrays and tensors become lists of the same numbers."""
    return np.asarray(value).tolist() if hasattr(value, "shape") else value
