"""Wrappers of Gymnasium environments that record every episode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from typing_extensions import Unpack

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.libraries import importing
from datasets_rl.recording.episode_writer import EpisodeWriter, EpisodeWriterOptions
from datasets_rl.specs import from_gymnasium

with importing("gymnasium", "gymnasium", "recording an environment"):
    import gymnasium
    from gymnasium.vector.utils import iterate


class RecordEpisodes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that records the episodes of an environment as a local dataset.

        >>> env = RecordEpisodes(gymnasium.make("Pendulum-v1"), "local/pendulum-random")
        >>> env.reset(seed=0)
        >>> ...                                       # any training program or loop
        >>> env.close()

    Each episode is safe when the episode ends. An episode that `reset` or `close` interrupts is truncated. The manifest
    gets the spaces as specs, and the specification of the environment as ``env_spec``. The episode table gets the seed of
    each episode as ``seed``, or -1 if `reset` got no seed.

    Args:
        env: The environment. A `gymnasium.vector.VectorEnv` gives a `RecordVectorEpisodes`.
        dataset: An id ``local/NAME``, as for `EpisodeWriter`.
        **options: Other arguments of `EpisodeWriter`, except `specs`, which are the specs of the environment.
    """

    def __new__(cls, env: Any, *arguments: Any, **options: Any) -> Any:
        """Return a `RecordVectorEpisodes` for a vector environment."""
        if isinstance(env, gymnasium.vector.VectorEnv):
            return RecordVectorEpisodes(env, *arguments, **options)
        return super().__new__(cls)

    def __init__(self, env: gymnasium.Env[Any, Any], dataset: str, **options: Unpack[EpisodeWriterOptions]) -> None:
        super().__init__(env)
        spaces = {"observation": env.observation_space, "action": env.action_space}
        self.writer = _writer(dataset, spaces, env.spec, options)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, and start an episode."""
        self.writer.end()
        observation, info = self.env.reset(seed=seed, options=options)
        self.writer.start(observation, info, seed=-1 if seed is None else seed)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, and record the step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.writer.step(action, observation, reward, terminated, truncated, info)
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Add the episodes to the dataset, and close the environment."""
        try:
            self.writer.close()
        finally:
            self.env.close()


class RecordVectorEpisodes(gymnasium.vector.VectorWrapper):
    """Wrapper that records the episodes of N parallel environments, as `RecordEpisodes` does for a single environment.

    The wrapper follows the autoreset mode of the environments. In the mode NEXT_STEP, the step after the end of an
    episode only resets the environment, and is not recorded. In the mode SAME_STEP, the last observation is
    ``info["final_obs"]``.

    Args:
        env: The vector environment.
        dataset: An id ``local/NAME``, as for `EpisodeWriter`.
        **options: Other arguments of `EpisodeWriter`, except `specs`, which are the specs of the environment.
    """

    def __init__(
        self, env: gymnasium.vector.VectorEnv[Any, Any, Any], dataset: str, **options: Unpack[EpisodeWriterOptions]
    ) -> None:
        super().__init__(env)
        mode = env.metadata.get("autoreset_mode")
        self._mode = "NEXT_STEP" if mode is None else str(getattr(mode, "name", mode))
        self._infos = tuple(options.get("infos", ()))
        self._ended = np.zeros(env.num_envs, np.bool_)
        spaces = {"observation": env.single_observation_space, "action": env.single_action_space}
        self.writer = _writer(dataset, spaces, env.spec, options)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or the environments in ``options["reset_mask"]``, and start new episodes."""
        mask = (options or {}).get("reset_mask")
        lanes = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
        for lane in lanes:
            self.writer.end(lane=lane)
        observations, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]  # the base class has int only
        seeds = [seed + lane for lane in range(self.num_envs)] if isinstance(seed, int) else seed
        items = list(iterate(self.observation_space, observations))
        for lane in lanes:
            self._start(lane, items[lane], infos, None if seeds is None else seeds[lane])
        return observations, infos

    def _start(self, lane: int, observation: Any, infos: Mapping[str, Any], seed: int | None = None) -> None:
        self.writer.start(observation, self._info(infos, lane), lane=lane, seed=-1 if seed is None else seed)
        self._ended[lane] = False

    def _info(self, infos: Mapping[str, Any], lane: int) -> dict[str, Any]:
        """Return the stored entries of an environment."""
        return {
            name: infos[name][lane]
            for name in self._infos
            if name in infos and (f"_{name}" not in infos or infos[f"_{name}"][lane])
        }

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments, and record the steps."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        rows: Iterator[Any] = zip(
            iterate(self.observation_space, observations),
            iterate(self.action_space, actions),
            rewards,
            terminated,
            truncated,
            strict=True,
        )
        for lane, (observation, action, reward, is_terminal, is_truncated) in enumerate(rows):
            ends = bool(is_terminal or is_truncated)
            if self._ended[lane]:
                if self._mode == "NEXT_STEP":
                    self._start(lane, observation, infos)
                continue
            after, info = observation, self._info(infos, lane)
            if ends and self._mode == "SAME_STEP":
                if "final_obs" not in infos:
                    raise InvalidArgumentError(
                        "an episode ended in the mode SAME_STEP without info['final_obs']: the last observation is unknown"
                    )
                after, info = infos["final_obs"][lane], self._info(infos.get("final_info", {}), lane)
            self.writer.step(action, after, reward, is_terminal, is_truncated, info, lane=lane)
            self._ended[lane] = ends
            if ends and self._mode == "SAME_STEP":
                self._start(lane, observation, infos)
        return observations, rewards, terminated, truncated, infos

    def close(self, **arguments: Any) -> None:
        """Add the episodes to the dataset, and close the environments."""
        try:
            self.writer.close()
        finally:
            self.env.close(**arguments)


def _writer(dataset: str, spaces: Mapping[str, Any], env_spec: Any, options: EpisodeWriterOptions) -> EpisodeWriter:
    """Return the writer for an environment. The specification of the environment is stored as in Minari's metadata."""
    described = {} if env_spec is None else _described(env_spec)
    options["metadata"] = {**described, **(options.get("metadata") or {})}
    specs = {name: from_gymnasium(space) for name, space in spaces.items()}
    return EpisodeWriter(dataset, specs=specs, **options)


def _described(env_spec: Any) -> dict[str, str]:
    """Return the specification as metadata, or only the id if the arguments in the specification are not JSON values."""
    try:
        return {"env_spec": env_spec.to_json()}
    except (TypeError, ValueError):
        return {"environment": env_spec.id}
