"""Offline-RL datasets as verified, memory-mapped TED replay buffers.

The public names stand here and are loaded on first use, so that `import datasets_rl` loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__: str

if TYPE_CHECKING:
    from datasets_rl.buffers import (
        PrioritizedReplayBuffer,
        ReplayBuffer,
        ReplayBufferEnsemble,
        SampledBatches,
        TensorDictPrioritizedReplayBuffer,
        TensorDictReplayBuffer,
    )
    from datasets_rl.datasets import (
        BaseDatasetExperienceReplay,
        D4RLExperienceReplay,
        DemoExperienceReplay,
        StoredExperienceReplay,
        open_dataset,
    )
    from datasets_rl.errors import (
        BadArgument,
        ConversionFailed,
        DatasetsRLError,
        DiskFull,
        FetchFailed,
        IntegrityFailed,
        Locked,
        ManifestInvalid,
        MissingDependency,
        NeedsYes,
        NotADataset,
        Offline,
        UnknownId,
        UnknownKey,
    )
    from datasets_rl.format import StoredDataset
    from datasets_rl.library import Verification, download, locate, remove, verify
    from datasets_rl.loading import load
    from datasets_rl.manifest import Manifest
    from datasets_rl.samplers import (
        PrioritizedSampler,
        PrioritizedSliceSampler,
        RandomSampler,
        Sampler,
        SamplerEnsemble,
        SamplerWithoutReplacement,
        SliceSampler,
        SliceSamplerWithoutReplacement,
    )
    from datasets_rl.scores import normalized_score
    from datasets_rl.settings import Settings
    from datasets_rl.storages import (
        DatasetStorage,
        LazyMemmapStorage,
        LazyTensorStorage,
        ListStorage,
        Storage,
        StorageEnsemble,
        TensorStorage,
    )
    from datasets_rl.ted.episode import Episode
    from datasets_rl.ted.table import EpisodeTable
    from datasets_rl.writers import (
        ImmutableDatasetWriter,
        RoundRobinWriter,
        TensorDictMaxValueWriter,
        TensorDictRoundRobinWriter,
        Writer,
        WriterEnsemble,
    )

__all__ = [
    "BadArgument",
    "BaseDatasetExperienceReplay",
    "ConversionFailed",
    "D4RLExperienceReplay",
    "DatasetStorage",
    "DatasetsRLError",
    "DemoExperienceReplay",
    "DiskFull",
    "Episode",
    "EpisodeTable",
    "FetchFailed",
    "ImmutableDatasetWriter",
    "IntegrityFailed",
    "LazyMemmapStorage",
    "LazyTensorStorage",
    "ListStorage",
    "Locked",
    "Manifest",
    "ManifestInvalid",
    "MissingDependency",
    "NeedsYes",
    "NotADataset",
    "Offline",
    "PrioritizedReplayBuffer",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomSampler",
    "ReplayBuffer",
    "ReplayBufferEnsemble",
    "RoundRobinWriter",
    "SampledBatches",
    "Sampler",
    "SamplerEnsemble",
    "SamplerWithoutReplacement",
    "Settings",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "Storage",
    "StorageEnsemble",
    "StoredDataset",
    "StoredExperienceReplay",
    "TensorDictMaxValueWriter",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
    "TensorDictRoundRobinWriter",
    "TensorStorage",
    "UnknownId",
    "UnknownKey",
    "Verification",
    "Writer",
    "WriterEnsemble",
    "__version__",
    "download",
    "load",
    "locate",
    "normalized_score",
    "open_dataset",
    "remove",
    "verify",
]

_HOMES = {
    "BadArgument": "datasets_rl.errors",
    "BaseDatasetExperienceReplay": "datasets_rl.datasets",
    "ConversionFailed": "datasets_rl.errors",
    "D4RLExperienceReplay": "datasets_rl.datasets",
    "DatasetStorage": "datasets_rl.storages",
    "DatasetsRLError": "datasets_rl.errors",
    "DemoExperienceReplay": "datasets_rl.datasets",
    "DiskFull": "datasets_rl.errors",
    "Episode": "datasets_rl.ted.episode",
    "EpisodeTable": "datasets_rl.ted.table",
    "FetchFailed": "datasets_rl.errors",
    "ImmutableDatasetWriter": "datasets_rl.writers",
    "IntegrityFailed": "datasets_rl.errors",
    "LazyMemmapStorage": "datasets_rl.storages",
    "LazyTensorStorage": "datasets_rl.storages",
    "ListStorage": "datasets_rl.storages",
    "Locked": "datasets_rl.errors",
    "Manifest": "datasets_rl.manifest",
    "ManifestInvalid": "datasets_rl.errors",
    "MissingDependency": "datasets_rl.errors",
    "NeedsYes": "datasets_rl.errors",
    "NotADataset": "datasets_rl.errors",
    "Offline": "datasets_rl.errors",
    "PrioritizedReplayBuffer": "datasets_rl.buffers",
    "PrioritizedSampler": "datasets_rl.samplers",
    "PrioritizedSliceSampler": "datasets_rl.samplers",
    "RandomSampler": "datasets_rl.samplers",
    "ReplayBuffer": "datasets_rl.buffers",
    "ReplayBufferEnsemble": "datasets_rl.buffers",
    "RoundRobinWriter": "datasets_rl.writers",
    "SampledBatches": "datasets_rl.buffers",
    "Sampler": "datasets_rl.samplers",
    "SamplerEnsemble": "datasets_rl.samplers",
    "SamplerWithoutReplacement": "datasets_rl.samplers",
    "Settings": "datasets_rl.settings",
    "SliceSampler": "datasets_rl.samplers",
    "SliceSamplerWithoutReplacement": "datasets_rl.samplers",
    "Storage": "datasets_rl.storages",
    "StorageEnsemble": "datasets_rl.storages",
    "StoredDataset": "datasets_rl.format",
    "StoredExperienceReplay": "datasets_rl.datasets",
    "TensorDictMaxValueWriter": "datasets_rl.writers",
    "TensorDictPrioritizedReplayBuffer": "datasets_rl.buffers",
    "TensorDictReplayBuffer": "datasets_rl.buffers",
    "TensorDictRoundRobinWriter": "datasets_rl.writers",
    "TensorStorage": "datasets_rl.storages",
    "UnknownId": "datasets_rl.errors",
    "UnknownKey": "datasets_rl.errors",
    "Verification": "datasets_rl.library",
    "Writer": "datasets_rl.writers",
    "WriterEnsemble": "datasets_rl.writers",
    "download": "datasets_rl.library",
    "load": "datasets_rl.loading",
    "locate": "datasets_rl.library",
    "normalized_score": "datasets_rl.scores",
    "open_dataset": "datasets_rl.datasets",
    "remove": "datasets_rl.library",
    "verify": "datasets_rl.library",
}
"""Where each name comes from."""


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name == "__version__":
        value: Any = _version()
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    from importlib.metadata import version

    return version("datasets-rl")
