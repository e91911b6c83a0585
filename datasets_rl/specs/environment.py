"""Check of the specs of an environment against the returned values."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs._errors import NotInSpecError
from datasets_rl.specs.base import LeafSpec
from datasets_rl.specs.composite import CompositeSpec
from datasets_rl.specs.torchrl import as_spec
from datasets_rl.ted.keys import NEXT

_STEPS = 3


def check_env_specs(
    env: Any,
    return_contiguous: bool | None = None,
    check_dtype: bool = True,
    seed: int | None = None,
    tensordict: TensorDictBase | None = None,
    break_when_any_done: bool | Literal["both"] | None = None,
) -> None:
    """Reset an environment, take a few random steps, and raise an error if the results do not match the specs.

    TorchRL checks environments of TorchRL. Any other environment needs these methods and attributes:

    * ``reset(tensordict=None)`` returns a TensorDict with the observations and the flags.
    * ``step(tensordict)`` returns the TensorDict with the reward, the next observations and flags under ``"next"``.
    * ``observation_spec``, ``action_spec``, ``reward_spec``, ``done_spec`` and optionally ``state_spec``, of this package
      or of TorchRL. A spec that is not a composite describes the key ``"observation"``, ``"action"``, ``"reward"`` or
      ``"done"``.

    The values must have exactly the keys of the specs, and every value must match the spec of the key.

    Args:
        env: The environment.
        return_contiguous: Passed on to TorchRL, without effect on other environments.
        check_dtype: Whether dtypes must match.
        seed: Seed for the environment, which needs a method ``set_seed``, and for torch. The random state of torch is
            restored.
        tensordict: The argument of ``reset``.
        break_when_any_done: True ends the steps when an episode ends, and False, the default, resets the environment.
            "both" runs both checks.

    Raises:
        NotInSpecError: An `AssertionError` that lists all values that do not match.
        InvalidArgumentError: If the environment has no `reset`, `step` or specs.
    """
    torchrl = sys.modules.get("torchrl.envs")
    if torchrl is not None and isinstance(env, torchrl.EnvBase):
        torchrl.check_env_specs(env, return_contiguous, check_dtype, seed, tensordict, break_when_any_done)
        return
    with _seeded(env, seed):
        for breaks in (True, False) if break_when_any_done == "both" else (bool(break_when_any_done),):
            problems = list(_rollout_problems(env, _Specs(env, check_dtype), tensordict, breaks))
            if problems:
                raise NotInSpecError(
                    f"the specs of {type(env).__name__} do not match the returned values: {'; '.join(problems)}",
                    hint="correct the specs or the environment",
                )


class _Specs:
    """The specs of an environment."""

    def __init__(self, env: Any, check_dtype: bool) -> None:
        specs = [f"{name}_spec" for name in ("observation", "action", "reward", "done")]
        missing = [name for name in ("reset", "step", *specs) if not hasattr(env, name)]
        if missing:
            raise InvalidArgumentError(
                f"{type(env).__name__} has no {', '.join(missing)}, expected reset, step and specs"
            )
        self.check_dtype = check_dtype
        self.observation, self.action, self.reward, self.done, self.state = (
            _composite(getattr(env, f"{name}_spec", None), name)
            for name in ("observation", "action", "reward", "done", "state")
        )

    def problems(self, place: str, value: Any, *specs: CompositeSpec, optional: CompositeSpec) -> list[str]:
        """Return the mismatches: values outside of specs, missing keys, and keys without a spec."""
        if not isinstance(value, TensorDictBase):
            return [f"{place} is a {type(value).__name__}, expected a TensorDict"]
        expected = {key: spec for composite in specs for key, spec in composite.items(True, True) if spec is not None}
        known = set(expected) | set(optional.keys(True, True))
        keys = [key for key in value.keys(True, True) if key != NEXT and key[0] != NEXT]
        problems = [f"{place}: {_dotted(key)} has no spec" for key in keys if key not in known]
        for key, spec in expected.items():
            name, item = f"{place}: {_dotted(key)}", value.get(key, None)
            if not self.check_dtype and isinstance(spec, LeafSpec) and isinstance(item, Tensor):
                item = item.to(spec.dtype)
            problems += [f"{name} is missing"] if item is None else spec.problems(item, name)
        return problems


def _composite(spec: Any, name: str) -> CompositeSpec:
    if spec is None:
        return CompositeSpec()
    spec = as_spec(spec)
    return spec if isinstance(spec, CompositeSpec) else CompositeSpec({name: spec})


def _rollout_problems(env: Any, specs: _Specs, tensordict: TensorDictBase | None, breaks: bool) -> Iterator[str]:
    start = (specs.observation, specs.done)
    state = env.reset() if tensordict is None else env.reset(tensordict)
    problems = specs.problems("reset", state, *start, optional=specs.state)
    yield from problems
    for number in range(0 if problems else _STEPS):
        state.update(specs.action.rand(state.batch_size[: state.ndim - specs.action.ndim]))
        state = env.step(state)
        following = state.get(NEXT, None) if isinstance(state, TensorDictBase) else state
        problems = specs.problems(f"step {number}", following, *start, specs.reward, optional=specs.state)
        yield from problems
        if problems:
            return
        done = any(bool(flag.any()) for flag in following.select(*specs.done.keys(True, True)).values(True, True))
        if done and breaks:
            return
        state = env.reset() if done else _advanced(following, specs)


def _advanced(following: TensorDictBase, specs: _Specs) -> TensorDictBase:
    """Return the next observations, flags and states as the current observations, flags and states."""
    keys = [key for spec in (specs.observation, specs.done, specs.state) for key in spec.keys(True, True)]
    advanced: TensorDictBase = following.select(*keys, strict=False)
    return TensorDict(dict(advanced.items()), batch_size=advanced.batch_size, device=advanced.device)


@contextmanager
def _seeded(env: Any, seed: int | None) -> Iterator[None]:
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
            env.set_seed(seed)
        yield


def _dotted(key: Any) -> str:
    return key if isinstance(key, str) else ".".join(key)
