"""Transforms of batches. Each module defines a group of related transforms."""

from datasets_rl.transforms.actions import (
    ActionDiscretizer,
    ActionScaling,
    ActionTokenizerTransform,
    DiscreteActionProjection,
    FlattenAction,
)
from datasets_rl.transforms.advantages import GAE, TDLambda
from datasets_rl.transforms.base import Transform
from datasets_rl.transforms.casts import DeviceCastTransform, DoubleToFloat, DTypeCastTransform, PinMemoryTransform
from datasets_rl.transforms.chunks import ActionChunkTransform
from datasets_rl.transforms.clips import ClipTransform
from datasets_rl.transforms.compose import Compose
from datasets_rl.transforms.crops import BurnInTransform, RandomCropTensorDict
from datasets_rl.transforms.filters import FiniteTensorDictCheck, PolicyAgeFilter, RemoveEmptySpecs
from datasets_rl.transforms.frames import CatFrames
from datasets_rl.transforms.images import CenterCrop, Crop, GrayScale, Resize, ToTensorImage
from datasets_rl.transforms.keys import ExcludeTransform, RenameTransform, SelectTransform
from datasets_rl.transforms.mdp import step_mdp
from datasets_rl.transforms.multi_step import MultiStep, MultiStepTransform
from datasets_rl.transforms.networks import ModuleTransform
from datasets_rl.transforms.next_states import NextObservationDelta, NextStateReconstructor
from datasets_rl.transforms.norms import ObservationNorm, RewardScaling
from datasets_rl.transforms.novelty import RNDTransform, RunningMeanStd
from datasets_rl.transforms.observations import ObservationTransform
from datasets_rl.transforms.pooling import TimeMaxPool
from datasets_rl.transforms.q_chunks import QChunkTransform
from datasets_rl.transforms.returns import (
    DensifyReward,
    ReturnsToGo,
    Reward2GoTransform,
    RewardSum,
    StepCounter,
    TargetReturn,
)
from datasets_rl.transforms.rewards import (
    BinarizeReward,
    LineariseRewards,
    RewardClipping,
    SignTransform,
    SuccessReward,
)
from datasets_rl.transforms.running_norms import VecNorm, VecNormV2
from datasets_rl.transforms.sequences import SequenceTransform
from datasets_rl.transforms.shapes import (
    CatTensors,
    FlattenObservation,
    PermuteTransform,
    SqueezeTransform,
    UnsqueezeTransform,
)
from datasets_rl.transforms.shifts import RandomShift
from datasets_rl.transforms.split import split_trajectories
from datasets_rl.transforms.stacks import ExpandAs, Stack
from datasets_rl.transforms.text import Hash, Tokenizer
from datasets_rl.transforms.trackers import InitTracker, TrajCounter
from datasets_rl.transforms.unary import UnaryTransform
from datasets_rl.transforms.video import DecodeVideoTransform
from datasets_rl.transforms.windows import WindowTransform

__all__ = [
    "GAE",
    "ActionChunkTransform",
    "ActionDiscretizer",
    "ActionScaling",
    "ActionTokenizerTransform",
    "BinarizeReward",
    "BurnInTransform",
    "CatFrames",
    "CatTensors",
    "CenterCrop",
    "ClipTransform",
    "Compose",
    "Crop",
    "DTypeCastTransform",
    "DecodeVideoTransform",
    "DensifyReward",
    "DeviceCastTransform",
    "DiscreteActionProjection",
    "DoubleToFloat",
    "ExcludeTransform",
    "ExpandAs",
    "FiniteTensorDictCheck",
    "FlattenAction",
    "FlattenObservation",
    "GrayScale",
    "Hash",
    "InitTracker",
    "LineariseRewards",
    "ModuleTransform",
    "MultiStep",
    "MultiStepTransform",
    "NextObservationDelta",
    "NextStateReconstructor",
    "ObservationNorm",
    "ObservationTransform",
    "PermuteTransform",
    "PinMemoryTransform",
    "PolicyAgeFilter",
    "QChunkTransform",
    "RNDTransform",
    "RandomCropTensorDict",
    "RandomShift",
    "RemoveEmptySpecs",
    "RenameTransform",
    "Resize",
    "ReturnsToGo",
    "Reward2GoTransform",
    "RewardClipping",
    "RewardScaling",
    "RewardSum",
    "RunningMeanStd",
    "SelectTransform",
    "SequenceTransform",
    "SignTransform",
    "SqueezeTransform",
    "Stack",
    "StepCounter",
    "SuccessReward",
    "TDLambda",
    "TargetReturn",
    "TimeMaxPool",
    "ToTensorImage",
    "Tokenizer",
    "TrajCounter",
    "Transform",
    "UnaryTransform",
    "UnsqueezeTransform",
    "VecNorm",
    "VecNormV2",
    "WindowTransform",
    "split_trajectories",
    "step_mdp",
]
