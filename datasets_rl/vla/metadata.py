"""Metadata of a dataset of robot actions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from tensordict import NestedKey, TensorClass
from torch import Tensor
from typing_extensions import Self

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import BoundedTensorSpec, TensorSpec, Unbounded
from datasets_rl.vla.layout import ACTION_KEY, INSTRUCTION_KEY, STATE_KEY

ActionSpace = Literal["joint_delta", "joint_position", "eef_delta", "eef_pose", "velocity", "mixed", "unknown"]
"""What an action means: a change or a target of the joints or of the gripper's pose, or a velocity."""
GripperMode = Literal["continuous", "binary", "none", "unknown"]
"""Values of the element of an action that moves the gripper."""

_STATISTICS = ("action_mean", "action_std", "action_low", "action_high")


class RobotDatasetMetadata(TensorClass["nocast"]):  # type: ignore[type-arg, name-defined]  # mypy reads the option as a type
    """Metadata of a dataset of robot actions: the meaning and statistics of actions, and the keys of batches.

    A tensorclass without batch size: `to` moves the statistics, and ``(a == b).all()`` compares two objects.

    Args:
        dataset_id: Id of the dataset.
        embodiment_id: Id of the robot.
        action_dim: Number of elements of an action.
        action_names: Name of each element.
        action_space: What an action means.
        gripper_mode: Values of the element that moves the gripper.
        control_frequency_hz: Steps per second.
        camera_keys: Keys of the images.
        state_key: Key of the state of the robot.
        instruction_key: Key of the instruction.
        action_key: Key of the action.
        action_mean: Mean of each element, float32 [action_dim].
        action_std: Standard deviation of each element, float32 [action_dim].
        action_low: Lower bound of each element, float32 [action_dim].
        action_high: Upper bound of each element, float32 [action_dim].
        license: License of the dataset.
        source_url: URL of the dataset.

    Raises:
        InvalidArgumentError: If `action_space`, `gripper_mode` or `action_dim` has no valid value.
    """

    dataset_id: str
    embodiment_id: str | None = None
    action_dim: int | None = None
    action_names: tuple[str, ...] | None = None
    action_space: ActionSpace = "unknown"
    gripper_mode: GripperMode = "unknown"
    control_frequency_hz: float | None = None
    camera_keys: tuple[NestedKey, ...] = ()
    state_key: NestedKey | None = STATE_KEY
    instruction_key: NestedKey | None = INSTRUCTION_KEY
    action_key: NestedKey = ACTION_KEY
    action_mean: Tensor | None = None
    action_std: Tensor | None = None
    action_low: Tensor | None = None
    action_high: Tensor | None = None
    license: str | None = None
    source_url: str | None = None

    def __post_init__(self) -> None:
        # Also called for the results of operations such as ==, with fields of bools: only values of users are checked.
        for name, valid in (("action_space", get_args(ActionSpace)), ("gripper_mode", get_args(GripperMode))):
            value = getattr(self, name)
            if isinstance(value, str) and value not in valid:
                raise InvalidArgumentError(f"{name} is {value!r}, expected one of {', '.join(valid)}")
        dim: Any = self.action_dim
        if dim is not None and not isinstance(dim, Tensor) and (not isinstance(dim, int) or dim <= 0):
            raise InvalidArgumentError(f"action_dim is {dim!r}, expected a positive int")
        for name in ("camera_keys", "action_names", "state_key", "instruction_key", "action_key"):
            if isinstance(value := getattr(self, name), list):
                setattr(self, name, _tuples(value))
        for name in _STATISTICS:
            if (value := getattr(self, name)) is not None and not isinstance(value, Tensor):
                setattr(self, name, torch.as_tensor(value, dtype=torch.float32))

    def make_action_spec(self, *, shape_prefix: tuple[int, ...] = (), device: Any = None) -> TensorSpec:
        """Return the spec of an action, float32 [*shape_prefix, action_dim]: with the bounds, if both are set.

        Args:
            shape_prefix: Leading axes.
            device: Device of the spec.

        Raises:
            InvalidArgumentError: If `action_dim` is not set.
        """
        if self.action_dim is None:
            raise InvalidArgumentError("action_dim must be set to get the spec of an action")
        shape = (*shape_prefix, self.action_dim)
        if self.action_low is None or self.action_high is None:
            return Unbounded(shape, device, torch.float32)
        return BoundedTensorSpec(self.action_low, self.action_high, shape, device, torch.float32)

    def to_json(self, path: Path | str | None = None) -> str:  # type: ignore[override]  # as in TorchRL
        """Return the metadata as JSON, and write the JSON to a file if a path is given."""
        text = json.dumps(self.to_dict(), indent=2, default=_plain)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    @classmethod
    def from_json(cls, source: Path | str) -> Self:  # type: ignore[override]  # as in TorchRL
        """Read the output of `to_json`, as text or from the path of a file. Unknown fields are ignored.

        Raises:
            InvalidArgumentError: If the JSON is invalid or a field has no valid value.
        """
        text = str(source) if str(source).lstrip().startswith("{") else Path(source).read_text(encoding="utf-8")
        try:
            document = json.loads(text)
        except ValueError as error:
            raise InvalidArgumentError(f"the metadata is not JSON: {error}") from None
        if not isinstance(document, dict) or "dataset_id" not in document:
            raise InvalidArgumentError("the metadata has no dataset_id, expected the output of `to_json`")
        fields = cls.__annotations__
        return cls(**{name: value for name, value in document.items() if name in fields})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
