"""Write ``ogbench.npz``: what OGBench's own package computes from states of the simulator, for all of its tasks.

It needs the package ``ogbench`` with its simulator, which the tests do not: ``python tests/golden/make_ogbench.py``.
The states are random, and around the goals of the five tasks of the environment: at a goal, at half of it, beside it.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import ogbench  # noqa: F401  -- registers the environments
from ogbench.relabel_utils import add_oracle_reps, relabel_dataset

HERE = Path(__file__).parent
CATALOG = HERE.parents[1] / "datasets_rl" / "sources" / "ogbench" / "catalog.json"


def states(facts: dict[str, Any], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return states of an environment, ``qpos`` [N, Q] and ``button_states`` [N, B]."""
    count = 12
    rows = [rng.normal(size=(count, facts["qpos"]))]
    buttons = [rng.integers(0, 2, (count, facts.get("buttons", 0)))]
    for goal in facts["goals"]:
        near = rng.normal(size=(5, facts["qpos"]))
        pressed = rng.integers(0, 2, (5, facts.get("buttons", 0)))
        if "first" in facts:
            steps = np.array([[0, 0], [0.999, 0], [0, 1.001], [0.6, 0.8], [0.5, -0.5]]) * facts["within"]
            near[:, facts["first"] : facts["first"] + 2] = np.array(goal) + steps
        else:
            offsets = np.array([0, 0.0399, 0.0401, 0, 0])
            for number, place in enumerate(goal.get("cubes", [])):
                first = 14 + 7 * number
                near[:4, first : first + 3] = place
                near[:4, first] += offsets[:4] * (number == 0)
            drawer = 14 + 7 * len(goal.get("cubes", [])) + facts["buttons"]
            for place, name in ((drawer, "drawer"), (drawer + 1, "window")):
                if name in goal:
                    near[:3, place] = goal[name] + offsets[:3]
            pressed[:3] = goal.get("buttons", [])
        rows.append(near)
        buttons.append(pressed)
    made = {"qpos": np.concatenate(rows).astype(np.float32)}
    if facts.get("buttons"):
        made["button_states"] = np.concatenate(buttons)
    return made


def main() -> None:
    warnings.simplefilter("ignore")
    out: dict[str, np.ndarray] = {}
    for name, facts in json.loads(CATALOG.read_text("utf-8"))["groups"].items():
        if "tasks" not in facts:
            continue
        arrays = states(facts["tasks"], np.random.default_rng(len(out)))
        out |= {f"{name}/{key}": values for key, values in arrays.items()}
        for task in ("", *(f"-task{number}" for number in range(1, 6))):
            full = f"{name}-singletask{task}-v0"
            dataset = dict(arrays)
            env = gymnasium.make(full)
            relabel_dataset(full, env, dataset)
            add_oracle_reps(full, env, dataset)
            env.close()
            out |= {f"{name}/{key}{task}": dataset[key] for key in ("rewards", "masks")}
            out[f"{name}/oracle_reps"] = dataset["oracle_reps"]
    np.savez_compressed(HERE / "ogbench.npz", **out)
    solved = sum(int((values == 0).sum()) for key, values in out.items() if "/masks" in key)
    print(f"{len(out)} arrays, {solved} solved states")


if __name__ == "__main__":
    main()
