"""What a tensor may hold: shape, dtype and domain, a kind a file."""

from datasets_rl.specs._base import TensorSpec
from datasets_rl.specs.composite import CompositeSpec
from datasets_rl.specs.discrete import DiscreteTensorSpec
from datasets_rl.specs.infer import from_manifest
from datasets_rl.specs.unbounded import UnboundedContinuousTensorSpec, UnboundedDiscreteTensorSpec

__all__ = [
    "CompositeSpec",
    "DiscreteTensorSpec",
    "TensorSpec",
    "UnboundedContinuousTensorSpec",
    "UnboundedDiscreteTensorSpec",
    "from_manifest",
]
