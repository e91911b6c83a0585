"""Former names of steps and of their arguments, which recipes and manifests of earlier versions have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from datasets_rl.preprocessing.steps import steps_by_name
from datasets_rl.preprocessing.steps.fields import DTYPES

Arguments = tuple[str, Sequence[Any], Mapping[str, Any]]
"""The name of a step, its positional and its keyword arguments."""

_RENAMED = {
    "flat_observation": "concatenate",
    "multi_step": "n_step_targets",
    "normalise": "normalize",
    "normalise_range": "normalize_range",
    "sparse_rewards": "binarize_rewards",
}


def with_present_names(arguments: Arguments) -> Arguments:
    """Return a step and its arguments under their present names; the same arguments if these are their names.

    A transform becomes the step that has the same result. It stays a transform if the step has no such arguments.
    """
    name, positional, named = arguments
    name = _RENAMED.get(name, name)
    if name in steps_by_name():
        former = steps_by_name()[name].former
        # An argument under both of its names stays, and is refused.
        return (
            name,
            positional,
            {key if former.get(key) in named else former.get(key, key): value for key, value in named.items()},
        )
    if name in _STEP_OF:
        step, translate = _STEP_OF[name]
        try:
            bound = inspect.signature(translate).bind(*positional, **named).arguments
        except TypeError:  # an argument that the step does not have
            return arguments
        translated = translate(**bound)
        return arguments if translated is None else (step, (), translated)
    return arguments


def _rewards_only(in_keys: Any) -> bool:
    return in_keys is None or _field_names(in_keys) == ["next.reward"]


def _field_names(in_keys: Any) -> list[Any]:
    """Return keys as names of fields; a state has one name for its values at t and at t + 1."""
    names = list(in_keys) if isinstance(in_keys, (list, tuple)) else [in_keys]
    return [name for name in names if str(name).removeprefix("next.") == name or name[5:] not in names]


def _binarize_arguments(in_keys: Any = None) -> dict[str, Any] | None:
    return {} if _rewards_only(in_keys) else None


def _cast_arguments(dtype_in: Any, dtype_out: Any, in_keys: Any = None) -> dict[str, Any] | None:
    if not str(dtype_out).startswith("float") or not {str(dtype_in), str(dtype_out)} <= {*DTYPES}:
        return None
    return {"dtype": dtype_out, **({"only": dtype_in} if in_keys is None else {"keys": _field_names(in_keys)})}


def _clip_arguments(clamp_min: Any = None, clamp_max: Any = None, in_keys: Any = None) -> dict[str, Any] | None:
    both_missing = clamp_min is None and clamp_max is None
    return None if both_missing or not _rewards_only(in_keys) else {"min": clamp_min, "max": clamp_max}


def _float32_arguments(in_keys: Any = None) -> dict[str, Any] | None:
    return _cast_arguments("float64", "float32", in_keys)


def _scale_arguments(loc: Any, scale: Any, in_keys: Any = None) -> dict[str, Any] | None:
    numbers = all(isinstance(value, (int, float)) for value in (loc, scale))
    return {"scale": scale, "shift": loc} if numbers and _rewards_only(in_keys) else None


def _stack_arguments(N: Any, dim: Any, in_keys: Any = "pixels", *, padding: Any = "same") -> dict[str, Any]:  # noqa: N803  # the name in the reference
    zeros = {"padding": "zeros"} if padding == "constant" else {"padding": padding} if padding != "same" else {}
    return {"n": N, "keys": _field_names(in_keys), "dim": dim, **zeros}


_STEP_OF: Mapping[str, tuple[str, Callable[..., dict[str, Any] | None]]] = {
    "binarize_reward": ("binarize_rewards", _binarize_arguments),
    "cat_frames": ("stack_frames", _stack_arguments),
    "d_type_cast": ("cast", _cast_arguments),
    "double_to_float": ("cast", _float32_arguments),
    "reward_clipping": ("clip_rewards", _clip_arguments),
    "reward_scaling": ("scale_rewards", _scale_arguments),
}
"""Steps that have the same results as transforms, and functions of the arguments of the transform that return those of
the step, None if there are none."""
