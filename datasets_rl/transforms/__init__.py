"""Transforms of batches. Each module defines a group of related transforms."""

from datasets_rl.transforms.advantages import GAE, TDLambda
from datasets_rl.transforms.base import Compose, Transform
from datasets_rl.transforms.casts import DeviceCastTransform, DoubleToFloat, DTypeCastTransform, PinMemoryTransform
from datasets_rl.transforms.chunks import ActionChunkTransform
from datasets_rl.transforms.crops import BurnInTransform, RandomCropTensorDict
from datasets_rl.transforms.frames import CatFrames
from datasets_rl.transforms.images import CenterCrop, Crop, GrayScale, Resize, ToTensorImage
from datasets_rl.transforms.keys import ExcludeTransform, RenameTransform, SelectTransform
from datasets_rl.transforms.mdp import step_mdp
from datasets_rl.transforms.multi_step import MultiStep, MultiStepTransform
from datasets_rl.transforms.norms import ObservationNorm, RewardScaling, VecNorm
from datasets_rl.transforms.returns import Reward2GoTransform, RewardSum, StepCounter, TargetReturn
from datasets_rl.transforms.rewards import BinarizeReward, RewardClipping, SignTransform
from datasets_rl.transforms.shapes import (
    CatTensors,
    FlattenObservation,
    PermuteTransform,
    SqueezeTransform,
    UnsqueezeTransform,
)
from datasets_rl.transforms.split import split_trajectories
from datasets_rl.transforms.text import Hash, Tokenizer
from datasets_rl.transforms.unary import UnaryTransform

__all__ = [
    "GAE",
    "ActionChunkTransform",
    "BinarizeReward",
    "BurnInTransform",
    "CatFrames",
    "CatTensors",
    "CenterCrop",
    "Compose",
    "Crop",
    "DTypeCastTransform",
    "DeviceCastTransform",
    "DoubleToFloat",
    "ExcludeTransform",
    "FlattenObservation",
    "GrayScale",
    "Hash",
    "MultiStep",
    "MultiStepTransform",
    "ObservationNorm",
    "PermuteTransform",
    "PinMemoryTransform",
    "RandomCropTensorDict",
    "RenameTransform",
    "Resize",
    "Reward2GoTransform",
    "RewardClipping",
    "RewardScaling",
    "RewardSum",
    "SelectTransform",
    "SignTransform",
    "SqueezeTransform",
    "StepCounter",
    "TDLambda",
    "TargetReturn",
    "ToTensorImage",
    "Tokenizer",
    "Transform",
    "UnaryTransform",
    "UnsqueezeTransform",
    "VecNorm",
    "split_trajectories",
    "step_mdp",
]
