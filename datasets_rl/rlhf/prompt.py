"""Data of language models that continue prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tensordict import tensorclass
from torch import Tensor
from typing_extensions import Self

from datasets_rl.rlhf.loader import TokenizedDatasetLoader
from datasets_rl.rlhf.tokenizers import PromptTensorDictTokenizer


@tensorclass
class PromptData:
    """Token sequences of prompts and labels, with batch size [N]."""

    input_ids: Tensor
    """Token ids of each prompt and its label, int64 [N, L]."""
    attention_mask: Tensor
    """1 for tokens and 0 for padding, int64 [N, L]."""
    prompt_rindex: Tensor
    """Index of the last token of each prompt, int64 [N]."""
    labels: Tensor | None = None
    """Token ids to predict, int64 [N, L]."""
    logits: Tensor | None = None
    """Outputs of a model, [N, L, vocabulary]."""
    loss: Tensor | None = None
    """Loss of a model."""

    def mask_label(self, pad_token_id: int = 50256) -> Self:
        """Return the prompts alone: tokens before `prompt_rindex`, then padding.

            input_ids       p_0  p_1  p_2  l_0  l_1  eos        prompt_rindex 2
            result          p_0  p_1  pad  pad  pad  pad

        The last token of the prompt is masked, too, as in TorchRL: this token may merge with the first letters of the
        label.

        Args:
            pad_token_id: Id of the padding. The default is gpt2's end-of-sequence token.

        Returns:
            `input_ids` and `attention_mask`, int64 [N, L], `prompt_rindex` and `loss`, with batch size [].
        """
        columns = torch.arange(self.input_ids.shape[1], device=self.prompt_rindex.device)
        mask = columns < self.prompt_rindex[:, None]
        return self.__class__(  # type: ignore[call-arg]  # every tensorclass has a batch_size
            input_ids=torch.where(mask, self.input_ids, pad_token_id),
            attention_mask=mask.to(torch.int64),
            prompt_rindex=self.prompt_rindex,
            loss=self.loss,
            batch_size=[],
        )

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
        """Tokenize the prompts of a dataset, unless stored, and return the memory-mapped prompts.

        The rows have the texts `prompt` and `label`. Sequences of which a part was cut are left out.

        `TokenizedDatasetLoader` describes the arguments. By default, the dataset is
        ``"CarperAI/openai_summarize_tldr"``. The fields of a ragged dataset are nested tensors.

        Raises:
            DatasetsRLError: See `TokenizedDatasetLoader.load`.
        """
        tokens = TokenizedDatasetLoader(
            split,
            max_length,
            "CarperAI/openai_summarize_tldr" if dataset_name is None else dataset_name,
            PromptTensorDictTokenizer,
            root_dir=root_dir,
            from_disk=from_disk,
            num_workers=num_workers,
            tokenizer_class=tokenizer_class,
            tokenizer_model_name=tokenizer_model_name,
            ragged=ragged,
        ).load()
        fields = {name: tokens[name] for name in ("input_ids", "attention_mask", "prompt_rindex")}
        return cls(  # type: ignore[call-arg]  # every tensorclass has a batch_size
            **fields, labels=tokens["input_ids"], batch_size=tokens.batch_size
        )
