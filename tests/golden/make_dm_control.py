"""Write ``dm_control.npz``: episodes of the DM control suite, as RL Unplugged and ExORL store them and as an agent saw them.

It needs ``dm_control``, which the tests do not: ``python tests/golden/make_dm_control.py``. The same loop records what an
agent sees before and after each of its steps, and the rows of both upstreams: those of RL Unplugged follow `dm_env`, and
those of ExORL the class ExtendedTimeStepWrapper of its repository, whose first row has an action of zeros.
"""

from __future__ import annotations

import gzip
import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from dm_control import suite

sys.path.insert(0, str(Path(__file__).parents[1]))

from raw.tfrecords import example, record

HERE = Path(__file__).parent
SECONDS = {"cheetah": 0.4, "walker": 1.0}  # 40 steps each


def roll(domain: str, task: str, episodes: int, **options: Any) -> tuple[list[list[dict[str, Any]]], dict[str, Any]]:
    """Take random actions; return the rows of each episode, and the transitions of all episodes."""
    rng = np.random.default_rng(0)
    kwargs = {"random": 0, "time_limit": SECONDS[domain]}
    env = suite.load(domain, task, task_kwargs=kwargs, environment_kwargs=options)
    width = env.action_spec().shape[0]
    runs: list[list[dict[str, Any]]] = []
    seen: dict[str, list[Any]] = {}
    for _ in range(episodes):
        step = env.reset()
        none = np.zeros(width, np.float32)
        rows = [{"step": step, "action": none, "physics": env.physics.state().copy()}]
        while not step.last():
            action = rng.uniform(-1, 1, width).astype(np.float32)
            before = step
            step = env.step(action)
            rows.append({"step": step, "action": action, "physics": env.physics.state().copy()})
            for name in before.observation:
                seen.setdefault(f"observation.{name}", []).append(before.observation[name])
                seen.setdefault(f"next.observation.{name}", []).append(step.observation[name])
            seen.setdefault("action", []).append(action)
            seen.setdefault("next.reward", []).append([step.reward])
            seen.setdefault("next.discount", []).append([step.discount])
            seen.setdefault("info.physics", []).append(rows[-2]["physics"])
            seen.setdefault("next.info.physics", []).append(rows[-1]["physics"])
        runs.append(rows)
    arrays = {name: np.asarray(values) for name, values in seen.items()}
    return runs, {name: values if "physics" in name else values.astype(np.float32) for name, values in arrays.items()}


def unplugged(rows: list[dict[str, Any]], number: int) -> bytes:
    """Return the record of an episode: an action is in the row of the observation at which it was taken."""
    steps = [row["step"] for row in rows]
    actions = [row["action"] for row in rows[1:]] + [rows[0]["action"]]
    features: dict[str, Any] = {
        f"observation/{name}": np.concatenate([step.observation[name] for step in steps]).astype(float).tolist()
        for name in steps[0].observation
    }
    features["action"] = np.concatenate(actions).astype(float).tolist()
    features["reward"] = [float(step.reward or 0) for step in steps]
    features["discount"] = [float(1 if step.discount is None else step.discount) for step in steps]
    features["step_type"] = [float(step.step_type) for step in steps]
    features["episode_id"] = features["timestamp"] = [number]
    return record(example(features))


def extended(rows: list[dict[str, Any]]) -> bytes:
    """Return the npz file of an episode of ExORL."""
    steps = [row["step"] for row in rows]
    with io.BytesIO() as file:
        np.savez_compressed(
            file,
            observation=np.stack([step.observation["observations"] for step in steps]).astype(np.float32),
            action=np.stack([row["action"] for row in rows]),
            reward=np.array([[step.reward or 0] for step in steps], np.float32),
            discount=np.array([[1 if step.discount is None else step.discount] for step in steps], np.float32),
            physics=np.stack([row["physics"] for row in rows]),
        )
        return file.getvalue()


def relabeled(physics: np.ndarray, domain: str, task: str) -> np.ndarray:
    """Return the rewards of another task in some states, [N, 1], as ExORL's `relable_episode` computes them."""
    env = suite.load(domain, task)
    rewards = []
    for state in physics:
        with env.physics.reset_context():
            env.physics.set_state(state)
        rewards.append([env.task.get_reward(env.physics)])
    return np.array(rewards, np.float32)


def main() -> None:
    runs, seen = roll("cheetah", "run", 2)
    out = {f"rl_unplugged/{name}": values for name, values in seen.items() if "physics" not in name}
    records = b"".join(unplugged(rows, number) for number, rows in enumerate(runs))
    out["rl_unplugged"] = np.frombuffer(gzip.compress(records, mtime=0), np.uint8)

    runs, seen = roll("walker", "walk", 2, flat_observation=True)
    out |= {f"exorl/{name.replace('.observations', '')}": values for name, values in seen.items()}
    out["exorl/run"] = relabeled(seen["next.info.physics"], "walker", "run")
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w") as archive:
            for number, rows in enumerate(runs):
                archive.writestr(f"buffer/episode_{number:06}_{len(rows) - 1}.npz", extended(rows))
        out["exorl"] = np.frombuffer(file.getvalue(), np.uint8)
    np.savez_compressed(HERE / "dm_control.npz", **out)
    print({name: values.shape for name, values in out.items()})


if __name__ == "__main__":
    main()
