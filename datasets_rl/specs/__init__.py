"""Specs: the shape, dtype and domain of the values that a key of a dataset holds."""

from datasets_rl.specs.base import DEVICE_TYPING, TensorSpec
from datasets_rl.specs.bounded import BoundedContinuous, BoundedTensorSpec
from datasets_rl.specs.categorical import (
    BinaryDiscreteTensorSpec,
    DiscreteTensorSpec,
    MultiDiscreteTensorSpec,
    MultiOneHotDiscreteTensorSpec,
    OneHotDiscreteTensorSpec,
)
from datasets_rl.specs.choice import ChoiceSpec
from datasets_rl.specs.composite import CompositeSpec
from datasets_rl.specs.consolidate import check_no_exclusive_keys, consolidate_spec, contains_lazy_spec
from datasets_rl.specs.environment import check_env_specs
from datasets_rl.specs.infer import from_manifest, spec_from_data
from datasets_rl.specs.lazy import LazyStackedCompositeSpec, LazyStackedTensorSpec
from datasets_rl.specs.non_tensor import NonTensorSpec
from datasets_rl.specs.space import BinaryBox, BoxList, CategoricalBox, ContinuousBox
from datasets_rl.specs.spaces import from_gymnasium, from_minari, to_gymnasium
from datasets_rl.specs.torchrl import as_spec, from_torchrl, to_torchrl
from datasets_rl.specs.unbounded import Unbounded, UnboundedContinuousTensorSpec, UnboundedDiscreteTensorSpec

# Names of the same classes in newer versions of TorchRL.
Binary = BinaryDiscreteTensorSpec
Bounded = BoundedTensorSpec
Categorical = DiscreteTensorSpec
Choice = ChoiceSpec
Composite = CompositeSpec
MultiCategorical = MultiDiscreteTensorSpec
MultiOneHot = MultiOneHotDiscreteTensorSpec
NonTensor = NonTensorSpec
OneHot = OneHotDiscreteTensorSpec
Stacked = LazyStackedTensorSpec
StackedComposite = LazyStackedCompositeSpec
UnboundedContinuous = UnboundedContinuousTensorSpec
UnboundedDiscrete = UnboundedDiscreteTensorSpec

__all__ = [
    "DEVICE_TYPING",
    "Binary",
    "BinaryBox",
    "BinaryDiscreteTensorSpec",
    "Bounded",
    "BoundedContinuous",
    "BoundedTensorSpec",
    "BoxList",
    "Categorical",
    "CategoricalBox",
    "Choice",
    "ChoiceSpec",
    "Composite",
    "CompositeSpec",
    "ContinuousBox",
    "DiscreteTensorSpec",
    "LazyStackedCompositeSpec",
    "LazyStackedTensorSpec",
    "MultiCategorical",
    "MultiDiscreteTensorSpec",
    "MultiOneHot",
    "MultiOneHotDiscreteTensorSpec",
    "NonTensor",
    "NonTensorSpec",
    "OneHot",
    "OneHotDiscreteTensorSpec",
    "Stacked",
    "StackedComposite",
    "TensorSpec",
    "Unbounded",
    "UnboundedContinuous",
    "UnboundedContinuousTensorSpec",
    "UnboundedDiscrete",
    "UnboundedDiscreteTensorSpec",
    "as_spec",
    "check_env_specs",
    "check_no_exclusive_keys",
    "consolidate_spec",
    "contains_lazy_spec",
    "from_gymnasium",
    "from_manifest",
    "from_minari",
    "from_torchrl",
    "spec_from_data",
    "to_gymnasium",
    "to_torchrl",
]
