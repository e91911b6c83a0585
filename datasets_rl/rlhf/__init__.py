"""Data of reinforcement learning from human feedback: texts tokenized once, pairs, prompts, and rollouts."""

from datasets_rl.rlhf.dataloader import create_infinite_iterator, get_dataloader
from datasets_rl.rlhf.kl import AdaptiveKLController, ConstantKLController, KLControllerBase
from datasets_rl.rlhf.loader import TokenizedDatasetLoader
from datasets_rl.rlhf.prompt import PromptData
from datasets_rl.rlhf.reward import PairwiseDataset, RewardData, pre_tokenization_hook
from datasets_rl.rlhf.rollout import RolloutFromModel
from datasets_rl.rlhf.tokenizers import PromptTensorDictTokenizer, TensorDictTokenizer

__all__ = [
    "AdaptiveKLController",
    "ConstantKLController",
    "KLControllerBase",
    "PairwiseDataset",
    "PromptData",
    "PromptTensorDictTokenizer",
    "RewardData",
    "RolloutFromModel",
    "TensorDictTokenizer",
    "TokenizedDatasetLoader",
    "create_infinite_iterator",
    "get_dataloader",
    "pre_tokenization_hook",
]
