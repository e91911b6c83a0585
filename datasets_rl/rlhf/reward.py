"""Data of reward models: sequences, and pairs of a chosen and a rejected sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensordict import TensorDict, tensorclass
from torch import Tensor
from typing_extensions import Self

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.libraries import importing
from datasets_rl.rlhf.loader import TokenizedDatasetLoader
from datasets_rl.rlhf.stored import rows_between
from datasets_rl.rlhf.tokenizers import TensorDictTokenizer


def pre_tokenization_hook(dataset: Any, min_length: int = 5) -> Any:
    r"""Select pairs of answers, and join each answer with its prompt.

    Args:
        dataset: A `datasets.Dataset` with the texts `prompt`, `chosen` and `rejected`.
        min_length: Minimum number of words of an answer.

    Returns:
        A `datasets.Dataset` with a single column, `text`: the prompt, a line break and the answer. The first half has
        the chosen answers, and the second half the rejected answers, in the same order. Pairs of equal answers, and
        pairs with an answer that is too short, are left out.

    Raises:
        MissingDependencyError: If the library datasets is not installed.
        InvalidArgumentError: If the dataset does not have these columns of strings.
    """
    with importing("datasets", "rlhf", "the selection of pairs"):
        from datasets import Dataset
    chosen, rejected = [], []
    for row in dataset:
        prompt, better, worse = (_text(row, name) for name in ("prompt", "chosen", "rejected"))
        if better != worse and min(len(better.split()), len(worse.split())) >= min_length:
            chosen.append({"text": f"{prompt}\n{better}"})
            rejected.append({"text": f"{prompt}\n{worse}"})
    return Dataset.from_list(chosen + rejected)


def _text(row: Any, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise InvalidArgumentError(
            f"{name!r} of a pair is {type(value).__name__}, expected a string, and the row has {', '.join(row) or 'no keys'}",
            hint="rename the columns to prompt, chosen and rejected, and render chat messages as text",
        )
    return value


@tensorclass
class RewardData:
    """Token sequences for a reward model, with batch size [N]."""

    input_ids: Tensor
    """Token ids, int64 [N, L]."""
    attention_mask: Tensor
    """1 for tokens and 0 for padding, int64 [N, L]."""
    rewards: Tensor | None = None
    """Reward of each token, [N, L]."""
    end_scores: Tensor | None = None
    """Reward of the last token of each sequence, [N]."""


@tensorclass
class PairwiseDataset:
    """Pairs of token sequences, a chosen and a rejected sequence each, with batch size [N]."""

    chosen_data: RewardData
    """The chosen sequences."""
    rejected_data: RewardData
    """The rejected sequence of each pair."""

    @classmethod
    def from_dataset(
        cls,
        split: str,
        dataset_name: str | Path | None = None,
        max_length: int = 550,
        root_dir: str | Path | None = None,
        from_disk: bool = False,
        num_workers: int | None = None,
        *,
        tokenizer_class: Any = None,
        tokenizer_model_name: str | Path | None = None,
        ragged: bool = False,
    ) -> Self:
        """Tokenize the pairs of a dataset, unless stored, and return the memory-mapped pairs.

        The rows have the texts `prompt`, `chosen` and `rejected`. `pre_tokenization_hook` describes which rows are
        kept.

        `TokenizedDatasetLoader` describes the arguments. By default, the dataset is
        ``"CarperAI/openai_summarize_comparisons"``. The fields of a ragged dataset are nested tensors.

        Raises:
            DatasetsRLError: See `TokenizedDatasetLoader.load`.
        """
        tokens = TokenizedDatasetLoader(
            split,
            max_length,
            "CarperAI/openai_summarize_comparisons" if dataset_name is None else dataset_name,
            TensorDictTokenizer,
            pre_tokenization_hook,
            root_dir=root_dir,
            from_disk=from_disk,
            num_workers=num_workers,
            tokenizer_class=tokenizer_class,
            tokenizer_model_name=tokenizer_model_name,
            ragged=ragged,
        ).load()
        pairs = len(tokens) // 2
        # All chosen sequences, then all rejected sequences: the order of `pre_tokenization_hook`.
        chosen, rejected = (rows_between(tokens, start, start + pairs) for start in (0, pairs))
        return cls(  # type: ignore[call-arg]  # every tensorclass has a batch_size
            chosen_data=_reward_data(chosen), rejected_data=_reward_data(rejected), batch_size=[pairs]
        )


def _reward_data(tokens: TensorDict) -> RewardData:
    names = ("input_ids", "attention_mask", "rewards", "end_scores")
    fields = {name: tokens[name] for name in names if name in tokens}
    return RewardData(**fields, batch_size=tokens.batch_size)  # type: ignore[call-arg]  # every tensorclass has this argument
