"""The table of public names, by subject: `__init__.py` loads them from here, and type checkers read it."""

# Datasets
from .datasets import (
    BaseDatasetExperienceReplay as BaseDatasetExperienceReplay,
    DSRLExperienceReplay as DSRLExperienceReplay,
    DemoExperienceReplay as DemoExperienceReplay,
    ExORLExperienceReplay as ExORLExperienceReplay,
    GenDGRLExperienceReplay as GenDGRLExperienceReplay,
    KatakombaExperienceReplay as KatakombaExperienceReplay,
    LeRobotExperienceReplay as LeRobotExperienceReplay,
    NeoRLExperienceReplay as NeoRLExperienceReplay,
    OGBenchExperienceReplay as OGBenchExperienceReplay,
    OGMARLExperienceReplay as OGMARLExperienceReplay,
    RLUnpluggedExperienceReplay as RLUnpluggedExperienceReplay,
    RobomimicExperienceReplay as RobomimicExperienceReplay,
    RobosetExperienceReplay as RobosetExperienceReplay,
    StoredExperienceReplay as StoredExperienceReplay,
    StreamedExperienceReplay as StreamedExperienceReplay,
)
from .datasets.flat import gather as gather
from .datasets.prefixes import register_dataset as register_dataset
from .build.engines.ray import RayEngine as RayEngine
from .format.reader import StoredDataset as StoredDataset
from .catalog.listing import DatasetInfo as DatasetInfo, info as info, list_datasets as list_datasets
from .catalog.citations import Citation as Citation, cite as cite
from .downloading.run import download as download
from .downloading.planning import Plan as Plan, plan as plan
from .store.find import locate as locate
from .store import remove as remove
from .datasets.loading import load as load
from .format.manifest import Manifest as Manifest
from .hub.push import Pushed as Pushed, push as push
from .datasets.open_mixture import (
    load_mixture as load_mixture,
    mixture as mixture,
)
from .recording.append import append_episodes as append_episodes
from .recording.episode_writer import EpisodeWriter as EpisodeWriter
from .recording.gymnasium import RecordEpisodes as RecordEpisodes, RecordVectorEpisodes as RecordVectorEpisodes
from .datasets.offline_to_online import (
    OfflineToOnlineReplayBuffer as OfflineToOnlineReplayBuffer,
    prefill_replay_buffer as prefill_replay_buffer,
)
from .transforms.normalizer import Normalizer as Normalizer
from .catalog.scores import ScoreInterval as ScoreInterval
from .catalog.scores import interquartile_mean as interquartile_mean
from .catalog.scores import normalized_score as normalized_score
from .settings import Settings as Settings
from .sources import Selection as Selection
from .datasets.atari_dqn import AtariDQNExperienceReplay as AtariDQNExperienceReplay
from .datasets.d4rl import D4RLExperienceReplay as D4RLExperienceReplay
from .datasets.local import LocalExperienceReplay as LocalExperienceReplay
from .datasets.minari import MinariExperienceReplay as MinariExperienceReplay
from .datasets.openml import OpenMLExperienceReplay as OpenMLExperienceReplay
from .datasets.openx import OpenXExperienceReplay as OpenXExperienceReplay
from .datasets.vd4rl import VD4RLExperienceReplay as VD4RLExperienceReplay
from .identifying import identify as identify
from .auditing import Audit as Audit, Finding as Finding, audit as audit
from .differences import diff as diff
from .verification.run import (
    Verification as Verification,
    verify as verify,
)

# Replay buffers
from .buffers import (
    ConditionalUpdateResult as ConditionalUpdateResult,
    HERReplayBuffer as HERReplayBuffer,
    HindsightStrategy as HindsightStrategy,
    Mixture as Mixture,
    PrioritizedReplayBuffer as PrioritizedReplayBuffer,
    ReplayBuffer as ReplayBuffer,
    ReplayBufferEnsemble as ReplayBufferEnsemble,
    SampleUnit as SampleUnit,
    SampledBatches as SampledBatches,
    Sequence as Sequence,
    TensorDictPrioritizedReplayBuffer as TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer as TensorDictReplayBuffer,
    Transition as Transition,
)
from .buffers.rate import SamplesPerInsert as SamplesPerInsert
from .buffers.ray import RayReplayBuffer as RayReplayBuffer, RayReplayBufferClient as RayReplayBufferClient

# Schedulers of parameters of samplers
from .buffers.schedulers import (
    LambdaScheduler as LambdaScheduler,
    LinearScheduler as LinearScheduler,
    ParameterScheduler as ParameterScheduler,
    SchedulerList as SchedulerList,
    StepScheduler as StepScheduler,
)

# Queries of trajectories
from .buffers.query import (
    Trajectory as Trajectory,
    TrajectoryPredicate as TrajectoryPredicate,
    filter_trajectories as filter_trajectories,
    iter_trajectories as iter_trajectories,
    traj as traj,
)
from .ted.boundaries import DEFAULT_DONE_KEYS as DEFAULT_DONE_KEYS, find_start_stop_traj as find_start_stop_traj

# Storages
from .storages import (
    DatasetStorage as DatasetStorage,
    LazyMemmapStorage as LazyMemmapStorage,
    LazyStackStorage as LazyStackStorage,
    LazyTensorStorage as LazyTensorStorage,
    ListStorage as ListStorage,
    Storage as Storage,
    StorageEnsemble as StorageEnsemble,
    TensorStorage as TensorStorage,
)

# Samplers of steps
from .samplers import (
    ConsumingSampler as ConsumingSampler,
    EpisodeSampler as EpisodeSampler,
    PrioritizedSampler as PrioritizedSampler,
    RandomSampler as RandomSampler,
    Sampler as Sampler,
    SamplerWithoutReplacement as SamplerWithoutReplacement,
)

# Samplers of slices and windows
from .samplers import (
    EpisodeSliceSampler as EpisodeSliceSampler,
    PrioritizedSliceSampler as PrioritizedSliceSampler,
    SliceSampler as SliceSampler,
    SliceSamplerWithoutReplacement as SliceSamplerWithoutReplacement,
    WindowSampler as WindowSampler,
)

# Samplers of goals and of several storages
from .samplers import (
    GoalSampler as GoalSampler,
    MixtureSampler as MixtureSampler,
    SamplerEnsemble as SamplerEnsemble,
)
from .samplers.goals import GoalDraws as GoalDraws

# Writers
from .writers import (
    ImmutableDatasetWriter as ImmutableDatasetWriter,
    RoundRobinWriter as RoundRobinWriter,
    TensorDictMaxValueWriter as TensorDictMaxValueWriter,
    TensorDictRoundRobinWriter as TensorDictRoundRobinWriter,
    Writer as Writer,
    WriterEnsemble as WriterEnsemble,
)

# Specs
from .specs import (
    DEVICE_TYPING as DEVICE_TYPING,
    Binary as Binary,
    BinaryBox as BinaryBox,
    BinaryDiscreteTensorSpec as BinaryDiscreteTensorSpec,
    Bounded as Bounded,
    BoundedContinuous as BoundedContinuous,
    BoundedTensorSpec as BoundedTensorSpec,
    BoxList as BoxList,
    Categorical as Categorical,
    CategoricalBox as CategoricalBox,
    Choice as Choice,
    ChoiceSpec as ChoiceSpec,
    Composite as Composite,
    CompositeSpec as CompositeSpec,
    ContinuousBox as ContinuousBox,
    DiscreteTensorSpec as DiscreteTensorSpec,
    LazyStackedCompositeSpec as LazyStackedCompositeSpec,
    LazyStackedTensorSpec as LazyStackedTensorSpec,
    MultiCategorical as MultiCategorical,
    MultiDiscreteTensorSpec as MultiDiscreteTensorSpec,
    MultiOneHot as MultiOneHot,
    MultiOneHotDiscreteTensorSpec as MultiOneHotDiscreteTensorSpec,
    NonTensor as NonTensor,
    NonTensorSpec as NonTensorSpec,
    OneHot as OneHot,
    OneHotDiscreteTensorSpec as OneHotDiscreteTensorSpec,
    Stacked as Stacked,
    StackedComposite as StackedComposite,
    TensorSpec as TensorSpec,
    Unbounded as Unbounded,
    UnboundedContinuous as UnboundedContinuous,
    UnboundedContinuousTensorSpec as UnboundedContinuousTensorSpec,
    UnboundedDiscrete as UnboundedDiscrete,
    UnboundedDiscreteTensorSpec as UnboundedDiscreteTensorSpec,
    check_env_specs as check_env_specs,
    check_no_exclusive_keys as check_no_exclusive_keys,
    consolidate_spec as consolidate_spec,
    contains_lazy_spec as contains_lazy_spec,
    from_gymnasium as from_gymnasium,
    from_minari as from_minari,
    from_torchrl as from_torchrl,
    spec_from_data as spec_from_data,
    to_gymnasium as to_gymnasium,
    to_torchrl as to_torchrl,
)

# Changes of whole trajectories, which TorchRL calls postprocs
from .transforms import (
    DensifyReward as DensifyReward,
    MultiStep as MultiStep,
    MultiStepTransform as MultiStepTransform,
)

# Texts for learning from human feedback
from .rlhf import (
    AdaptiveKLController as AdaptiveKLController,
    ConstantKLController as ConstantKLController,
    PairwiseDataset as PairwiseDataset,
    PromptData as PromptData,
    PromptTensorDictTokenizer as PromptTensorDictTokenizer,
    RewardData as RewardData,
    RolloutFromModel as RolloutFromModel,
    TensorDictTokenizer as TensorDictTokenizer,
    TokenizedDatasetLoader as TokenizedDatasetLoader,
    create_infinite_iterator as create_infinite_iterator,
    get_dataloader as get_dataloader,
)

# Data of vision-language-action models
from .vla import (
    ActionTokenizerBase as ActionTokenizerBase,
    RobotDatasetMetadata as RobotDatasetMetadata,
    UniformActionTokenizer as UniformActionTokenizer,
    VocabTailActionTokenizer as VocabTailActionTokenizer,
    validate_vla_tensordict as validate_vla_tensordict,
)

# Preprocessing
from .preprocessing import (
    Recipe as Recipe,
    preprocess as preprocess,
    preview as preview,
)
from .store import restore as restore
from .preprocessing.environment import make_env as make_env

# Export
from .exporting import export as export

# Episodes
from .ted.episode import Episode as Episode
from .ted.table import EpisodeTable as EpisodeTable

__version__: str
