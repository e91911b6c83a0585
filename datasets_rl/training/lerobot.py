"""The datasets of a training program of LeRobot, from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from datasets_rl.datasets.loading import load
from datasets_rl.errors import InvalidArgumentError

if TYPE_CHECKING:
    from datasets_rl.adapters.lerobot import LeRobotFrames
    from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay

_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def make_train_eval_datasets(
    cfg: Any, dataset: BaseDatasetExperienceReplay | None = None
) -> tuple[LeRobotFrames, LeRobotFrames | None]:
    """Return the frames for training and the held-out frames, in place of LeRobot's function of this name.

        >>> from lerobot.scripts import lerobot_train
        >>> lerobot_train.make_train_eval_datasets = make_train_eval_datasets
        >>> lerobot_train.main()                      # --dataset.repo_id=demo/pendulum --policy.type=act ...

    The windows are those of the policy, with the frame rate of the dataset, or a frame per second if none is stated.

    Args:
        cfg: The `TrainPipelineConfig`. ``dataset.repo_id`` is an id of this package, and ``dataset.root`` a path that
            takes its place.
        dataset: The dataset, instead of that of the configuration.

    Raises:
        InvalidArgumentError: If the configuration asks for streaming, or for episodes that do not exist.
        UnknownIdError: If there is no such dataset.
    """
    if cfg.dataset.streaming:
        raise InvalidArgumentError(
            "dataset.streaming is True, expected False: the stored dataset is read",
            hint="leave the option out: the files are mapped into memory, however large they are",
        )
    if dataset is None:
        dataset = load(str(cfg.dataset.root or cfg.dataset.repo_id))
    fps = dataset.manifest.fps or 1
    features = dataset.as_lerobot(fps=fps).features
    transforms = None
    if cfg.dataset.image_transforms.enable:
        from lerobot.transforms import ImageTransforms

        transforms = ImageTransforms(cfg.dataset.image_transforms)
    frames = dataset.as_lerobot(
        _delta_timestamps(getattr(cfg, "trainable_config", None) or cfg.policy, features, fps),
        episodes=cfg.dataset.episodes,
        image_transforms=transforms,
        fps=fps,
    )
    if cfg.dataset.use_imagenet_stats:
        for name in frames.meta.camera_keys:
            for statistic, numbers in _IMAGENET.items():
                frames.meta.stats[name][statistic] = torch.tensor(numbers).view(3, 1, 1)
    return frames.split(cfg.dataset.eval_split)


def _delta_timestamps(
    policy: Any, features: Mapping[str, Mapping[str, Any]], fps: float
) -> dict[str, list[float]] | None:
    """Return the seconds of the windows that a policy needs, by the name of a feature that does not consist of texts."""
    seconds: dict[str, list[float]] = {}
    for name in (name for name, one in features.items() if one["dtype"] not in {"string", "language"}):
        kind = {"action": "action", "next.reward": "reward"}.get(name, name.partition(".")[0])
        indices = (
            getattr(policy, f"{kind}_delta_indices", None) if kind in {"action", "reward", "observation"} else None
        )
        if indices is not None:
            seconds[name] = [index / fps for index in indices]
    return seconds or None
