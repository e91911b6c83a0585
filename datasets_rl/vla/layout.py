"""Keys of batches for vision-language-action models, and a check of batches.

TensorDict
observation.image              uint8 or float [*B, T, C, H, W], or such a tensor for each camera
observation.state              float [*B, T, state_dim]
language_instruction           text
action                         float [*B, T, action_dim]
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase, is_non_tensor
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError

IMAGE_KEY: NestedKey = ("observation", "image")
"""An image, or a TensorDict of images by camera."""
STATE_KEY: NestedKey = ("observation", "state")
"""State of the robot: angles of joints, position of the gripper."""
INSTRUCTION_KEY: NestedKey = "language_instruction"
"""Task, as text or as tokens."""
ACTION_KEY: NestedKey = "action"
"""Action of each step."""

_MISSING: Any = object()


def validate_vla_tensordict(
    tensordict: TensorDictBase,
    *,
    instruction_key: NestedKey = INSTRUCTION_KEY,
    action_key: NestedKey = ACTION_KEY,
    image_key: NestedKey = IMAGE_KEY,
    state_key: NestedKey = STATE_KEY,
    require_instruction: bool = True,
    require_action: bool = True,
    require_perception: bool = True,
    check_finite: bool = True,
    raise_on_error: bool = True,
) -> list[str]:
    """Check that a batch has what a vision-language-action model needs. Shapes are not checked.

    Args:
        tensordict: The batch.
        instruction_key: Key of the instruction, which must not be an empty text.
        action_key: Key of the actions.
        image_key: Key of the images.
        state_key: Key of the state of the robot.
        require_instruction: Whether an instruction is required.
        require_action: Whether actions are required.
        require_perception: Whether images or states are required.
        check_finite: Whether actions must be finite.
        raise_on_error: Whether problems raise an error.

    Returns:
        The problems, empty for a valid batch.

    Raises:
        InvalidArgumentError: If there are problems and `raise_on_error` is True. The message lists all problems.
    """
    problems: list[str] = []
    instruction, action = _value(tensordict, instruction_key), _value(tensordict, action_key)
    if instruction is _MISSING:
        if require_instruction:
            problems.append(f"missing language instruction at {instruction_key!r}")
    elif is_non_tensor(instruction) and not str(getattr(instruction, "data", "text")).strip():
        problems.append(f"empty language instruction at {instruction_key!r}")
    if require_perception and all(_value(tensordict, key) is _MISSING for key in (image_key, state_key)):
        problems.append(f"no perception: expected images at {image_key!r} or states at {state_key!r}")
    if action is _MISSING:
        if require_action:
            problems.append(f"missing action at {action_key!r}")
    elif check_finite and isinstance(action, Tensor) and len(places := (~torch.isfinite(action)).nonzero()):
        problems.append(f"non-finite values in action at {action_key!r}, the first at {places[0].tolist()}")
    if problems and raise_on_error:
        raise InvalidArgumentError(f"the batch does not follow the VLA schema: {'; '.join(problems)}")
    return problems


def _value(tensordict: TensorDictBase, key: NestedKey) -> Any:
    try:
        return tensordict.get(key, _MISSING)
    except (KeyError, TypeError, ValueError):  # a key inside of a tensor
        return _MISSING
