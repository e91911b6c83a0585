"""The steps that recipes can name: those of the modules beside this one, and transforms."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datasets_rl.preprocessing.base import Step
    from datasets_rl.transforms import Transform

__all__ = ["STEPS", "step_class"]

STEPS: Mapping[str, str] = {
    "action_chunk": "transforms:ActionChunkTransform",
    "action_scaling": "transforms:ActionScaling",
    "binarize_reward": "transforms:BinarizeReward",
    "cast": "preprocessing.steps.fields:Cast",
    "center_crop": "transforms:CenterCrop",
    "clip": "transforms:ClipTransform",
    "compress_images": "preprocessing.steps.forms:CompressImages",
    "concatenate": "preprocessing.steps.fields:Concatenate",
    "crop": "transforms:Crop",
    "delay_rewards": "preprocessing.steps.rewards:DelayRewards",
    "discrete_action_projection": "transforms:DiscreteActionProjection",
    "drop_episodes": "preprocessing.steps.keep:DropEpisodes",
    "drop_timeouts": "preprocessing.steps.times:DropTimeouts",
    "drop_unknown_final": "preprocessing.steps.times:DropUnknownFinal",
    "exclude": "preprocessing.steps.fields:Exclude",
    "expand_as": "transforms:ExpandAs",
    "flatten_action": "transforms:FlattenAction",
    "flatten_observation": "transforms:FlattenObservation",
    "frame_skip": "preprocessing.steps.times:FrameSkip",
    "gae": "preprocessing.steps.advantages:GAE",
    "gray_scale": "transforms:GrayScale",
    "hindsight_goals": "preprocessing.steps.goals:HindsightGoals",
    "init_tracker": "transforms:InitTracker",
    "keep_episodes": "preprocessing.steps.keep:KeepEpisodes",
    "keep_lengths": "preprocessing.steps.keep:KeepLengths",
    "keep_returns": "preprocessing.steps.keep:KeepReturns",
    "keep_steps": "preprocessing.steps.times:KeepSteps",
    "keep_success": "preprocessing.steps.keep:KeepSuccess",
    "keep_top_returns": "preprocessing.steps.keep:KeepTopReturns",
    "keep_where": "preprocessing.steps.keep:KeepWhere",
    "linearise_rewards": "transforms:LineariseRewards",
    "n_step_targets": "preprocessing.steps.returns:NStepTargets",
    "normalize": "preprocessing.steps.normalize:Normalize",
    "normalize_quantiles": "preprocessing.steps.normalize:NormalizeQuantiles",
    "normalize_range": "preprocessing.steps.normalize:NormalizeRange",
    "permute": "transforms:PermuteTransform",
    "rename": "preprocessing.steps.fields:Rename",
    "resize": "transforms:Resize",
    "returns_to_go": "preprocessing.steps.returns:ReturnsToGo",
    "reward_clipping": "transforms:RewardClipping",
    "reward_sum": "transforms:RewardSum",
    "scale_by_returns": "preprocessing.steps.rewards:ScaleByReturns",
    "scale_rewards": "preprocessing.steps.rewards:ScaleRewards",
    "select": "preprocessing.steps.fields:Select",
    "sign": "transforms:SignTransform",
    "split": "preprocessing.steps.keep:Split",
    "squeeze": "transforms:SqueezeTransform",
    "stack": "transforms:Stack",
    "stack_frames": "preprocessing.steps.images:StackFrames",
    "step_counter": "transforms:StepCounter",
    "success_rewards": "preprocessing.steps.rewards:SuccessRewards",
    "target_return": "transforms:TargetReturn",
    "td_lambda": "preprocessing.steps.advantages:TDLambda",
    "time_max_pool": "transforms:TimeMaxPool",
    "to_tensor_image": "transforms:ToTensorImage",
    "to_uint8": "preprocessing.steps.images:ToUint8",
    "unsqueeze": "transforms:UnsqueezeTransform",
}
"""The module and the class of each step by its name. The command line reads the names from this file without importing it.

Not among them are transforms that need a model, a function or another object, take text, have no effect on stored data,
depend on the order of batches, or repeat steps in windows. Some transforms do what a step does for certain arguments:
``clip`` with ``in_keys=next.reward`` does what ``reward_clipping`` does."""


def step_class(name: str) -> type[Step | Transform]:
    """Return the class of a step: a `Step`, or a `Transform` that `TransformStep` applies.

    Raises:
        KeyError: If there is no such step.
    """
    module, _, attribute = STEPS[name].partition(":")
    cls: type[Step | Transform] = getattr(import_module(f"datasets_rl.{module}"), attribute)
    return cls
