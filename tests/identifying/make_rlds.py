"""Write ``episodes.pkl`` of a folder as a dataset of TensorFlow Datasets into the folder: ``python -P make_rlds.py FOLDER``.

It needs tensorflow and tensorflow-datasets, and nothing of datasets-rl. `writers.rlds` calls it.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

FOLDER = Path(sys.argv[1])
EPISODES = pickle.loads((FOLDER / "episodes.pkl").read_bytes())


def feature(values: np.ndarray) -> Any:
    """Return the feature of an array of steps."""
    if values.dtype == object:
        return tfds.features.Text()
    if values.ndim == 4 and values.shape[1] > 7:
        return tfds.features.Image(shape=values.shape[1:], dtype=np.uint8, encoding_format="png")
    return tfds.features.Tensor(shape=values.shape[1:], dtype=values.dtype)


def features_of(arrays: dict[str, np.ndarray]) -> Any:
    """Return the features of a dict of arrays. A single array has the name ""."""
    if [*arrays] == [""]:
        return feature(arrays[""])
    return tfds.features.FeaturesDict({name: feature(values) for name, values in arrays.items()})


class Copy(tfds.core.GeneratorBasedBuilder):
    """Episodes of steps, as Open X-Embodiment has them."""

    pkg_dir_path = FOLDER  # tfds looks for the metadata of a builder in the folder of its module
    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> Any:
        states, actions, _, _, task = EPISODES[0]
        steps = {
            "observation": features_of(states),
            "action": features_of(actions),
            "reward": np.float32,
            "discount": np.float32,
            "is_first": np.bool_,
            "is_last": np.bool_,
            "is_terminal": np.bool_,
        }
        if task:
            steps["language_instruction"] = tfds.features.Text()
        features = tfds.features.FeaturesDict({"steps": tfds.features.Dataset(steps)})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager: Any) -> Any:
        del dl_manager
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Any:
        for number, (states, actions, rewards, terminated, task) in enumerate(EPISODES):
            last = len(rewards)  # this step has the observation after the last action
            steps = []
            for row in range(last + 1):
                observation = {name: values[row] for name, values in states.items()}
                action = {name: values[row] if row < last else 0 * values[-1] for name, values in actions.items()}
                step = {
                    "observation": observation.get("", observation),
                    "action": action.get("", action),
                    "reward": rewards[row] if row < last else np.float32(0),
                    "discount": np.float32(1),
                    "is_first": row == 0,
                    "is_last": row == last,
                    "is_terminal": terminated and row == last,
                }
                steps.append(step | ({"language_instruction": task} if task else {}))
            yield number, {"steps": steps}


Copy(data_dir=str(FOLDER)).download_and_prepare()
