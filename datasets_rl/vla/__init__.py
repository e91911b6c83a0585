"""Data of vision-language-action models (VLA): action tokens, the layout of batches, and metadata of robot datasets."""

from datasets_rl.vla.action_tokenizer import ActionTokenizerBase
from datasets_rl.vla.layout import validate_vla_tensordict
from datasets_rl.vla.lerobot import lerobot_columns_to_tensordict
from datasets_rl.vla.metadata import RobotDatasetMetadata
from datasets_rl.vla.uniform import UniformActionTokenizer
from datasets_rl.vla.vocab_tail import VocabTailActionTokenizer

__all__ = [
    "ActionTokenizerBase",
    "RobotDatasetMetadata",
    "UniformActionTokenizer",
    "VocabTailActionTokenizer",
    "lerobot_columns_to_tensordict",
    "validate_vla_tensordict",
]
