"""Generate minari-0.3.1.tar.gz, datasets that Minari itself combined by links, and what it reads of them.

``python -P tests/raw/make_minari.py FILE`` needs minari 0.3.1 with its dependencies, and no folder ``/tmp/minari``: links
have absolute paths. `test_minari_links` reads the archive.

    drawn-first-v0      two episodes
    drawn-second-v0     two episodes, and two that were added in additional_data_0.hdf5
    drawn-both-v0       these six, all links
    drawn-nested-v0     links to those of drawn-both-v0, and to those of drawn-first-v0
    read.json           by id: the episodes as Minari 0.3.1 reads them
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

CACHE = Path("/tmp/minari/datasets")
NAMES = ("drawn-first-v0", "drawn-second-v0")


class Drawn(gymnasium.Env[Any, Any]):
    """An environment of random states, which ends after four steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Box(-1, 1, (2,))
    rng = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Draw the first state."""
        del options
        super().reset(seed=seed)
        self.time = 0
        return self.rng.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, _action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Draw the next state and a reward."""
        self.time += 1
        return self.rng.uniform(-1, 1, 3).astype(np.float32), self.rng.normal(), self.time == 4, False, {}


def main(target: str) -> None:
    """Write the archive."""
    import minari

    gymnasium.register("Drawn-v0", entry_point="make_minari:Drawn", max_episode_steps=10)
    os.environ["MINARI_DATASETS_PATH"] = str(CACHE)
    for name in NAMES:
        env = minari.DataCollectorV0(gymnasium.make("Drawn-v0"))
        _play(env)
        facts = {"algorithm_name": "drawn", "author": "nobody", "author_email": "nobody@example.org"}
        made = minari.create_dataset_from_collector_env(name, env, code_permalink="https://example.org", **facts)
        if name == NAMES[1]:
            _play(env)
            made.update_dataset_from_collector_env(env)
    for name, parts in {"drawn-both-v0": NAMES, "drawn-nested-v0": ("drawn-both-v0", NAMES[0])}.items():
        minari.combine_datasets([minari.load_dataset(part) for part in parts], name)
    read = {}
    for name in (*NAMES, "drawn-both-v0", "drawn-nested-v0"):
        # Its iterator takes the numbers that links have changed; the groups are in order.
        dataset = minari.load_dataset(name)
        found = dataset._data.get_episodes(range(dataset.total_episodes))
        names = ("observations", "actions", "rewards", "terminations", "truncations")
        read[name] = [{one: np.asarray(episode[one]).tolist() for one in names} for episode in found]
    (CACHE / "read.json").write_text(json.dumps(read))
    with tarfile.open(target, "w:gz") as archive:
        for path in (path for path in sorted(CACHE.rglob("*")) if "tmp" not in path.relative_to(CACHE).parts[0]):
            archive.add(path, path.relative_to(CACHE), recursive=False)
    shutil.rmtree(CACHE)


def _play(env: Any) -> None:
    rng = np.random.default_rng(1)
    for seed in range(2):
        env.reset(seed=seed)
        for _ in range(4):
            env.step(rng.uniform(-1, 1, 2).astype(np.float32))


if __name__ == "__main__":
    main(sys.argv[1])
