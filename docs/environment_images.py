"""Small images of the environments in the catalogs, and what each image is: `python docs/environment_images.py`.

The images go to `docs/images/environments/`, the facts to `docs/environments.json`. The pages of the datasets show
both. What cannot be made here is left out and named, with the reason. The program needs the libraries of the environments,

    pip install ale-py 'gymnasium[classic-control]' gymnasium-robotics minigrid 'mujoco==3.3.7' 'dm-control==1.0.34' shimmy

and no display: MuJoCo renders by EGL, on a machine without a GPU too.
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from datasets_rl import list_datasets
from datasets_rl.catalog.environments import NamedEnvironment, make_named_env

DOCS = Path(__file__).parent
FACTS = DOCS / "environments.json"
IMAGES = DOCS / "images" / "environments"
SIDE = 240
"""Pixels of the longer side of an image that is not of a game. Images of games keep their size, mostly 160 x 210."""
STEPS_OF_GAMES = 200
"""Steps of random actions before the image of a game: many begin with an empty screen."""
_GAMES = r"ALE/|.*NoFrameskip-"
_WHOLE_MAZE = {"distance": 55.0, "elevation": -65.0, "azimuth": 90.0, "lookat": np.zeros(3)}
"""The camera for mazes with an ant, where the default camera follows the ant between the walls."""


def main() -> None:
    """Write the images and the facts, and report the environments that cannot be made."""
    os.environ.setdefault("MUJOCO_GL", "egl")
    warnings.simplefilter("ignore")
    IMAGES.mkdir(parents=True, exist_ok=True)
    facts = dict(made_environments())
    FACTS.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    shown = {f"{one['image']}" for one in facts.values()}
    for path in IMAGES.iterdir():
        if path.name not in shown:
            path.unlink()
    size = sum(path.stat().st_size for path in IMAGES.iterdir())
    print(f"{len(facts)} environments, {len(shown)} images, {size:,} bytes", file=sys.stderr)  # noqa: T201


def made_environments() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each environment of the catalogs that can be made, by its name in the datasets."""
    named = {one.environment: one.id for one in reversed(list_datasets().infos) if one.environment}
    for name, dataset_id in sorted(named.items()):
        try:
            yield name, made_environment(name, dataset_id)
        except Exception as error:  # noqa: BLE001, environments fail in various ways
            print(f"left out {name}: {error}"[:160], file=sys.stderr)  # noqa: T201


def made_environment(name: str, dataset_id: str) -> dict[str, Any]:
    """Make an environment and write its image. Return the id, the library and the spaces."""
    env: Any = make_named_env(NamedEnvironment(name), dataset_id, render_mode="rgb_array")
    if ant := getattr(env.unwrapped, "ant_env", None):
        ant.mujoco_renderer.camera_id, ant.mujoco_renderer.default_cam_config = -1, _WHOLE_MAZE
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(STEPS_OF_GAMES * bool(re.match(_GAMES, name))):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    made = str(getattr(env.spec, "id", name))
    image = f"{made.replace('/', '_')}.webp"
    write_image(env.render(), IMAGES / image)
    library = packages_distributions()[type(env.unwrapped).__module__.partition(".")[0]][0]
    found = {
        "made": made,
        "library": f"{library.lower()} {version(library)}",
        "observation": box_shape(env.observation_space),
        "action": box_shape(env.action_space),
        "image": image,
    }
    env.close()
    return found


def box_shape(space: Any) -> list[int] | None:
    """Return the shape of a `Box`, or None for another space."""
    return list(space.shape) if type(space).__name__ == "Box" else None


def write_image(pixels: NDArray[np.uint8], path: Path) -> None:
    """Write an image [H, W, 3]: that of a game without loss, others smaller and with loss."""
    image = Image.fromarray(pixels)
    if image.width == 160:  # the screen of the Atari 2600
        image.save(path, lossless=True, method=6)
        return
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    image.save(path, quality=60, method=6)


if __name__ == "__main__":
    main()
