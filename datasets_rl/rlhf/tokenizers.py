"""Tokenization recipes: functions from texts to token ids, over a tokenizer of transformers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.libraries import importing
from datasets_rl.settings import Settings

DEFAULT_TOKENIZER = "gpt2"


class TensorDictTokenizer:
    """Tokenization of texts: a function from examples to token ids and attention masks.

    Args:
        tokenizer: A tokenizer of transformers, or a callable with the same arguments and results.
        max_length: Maximum number of tokens of a sequence, L.
        key: Key of the texts in an example.
        padding: Passed to the tokenizer: ``"max_length"`` pads every sequence to L tokens, ``"longest"`` to the
            longest of the batch, and False does not pad.
        truncation: Whether longer sequences are cut to L tokens.
        return_tensordict: Whether the result is a TensorDict. If False, the tokenizer's result is returned.
        device: Device of the TensorDict.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_length: int,
        key: str = "text",
        padding: str | bool = "max_length",
        truncation: bool = True,
        return_tensordict: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.key = key
        self.padding = padding
        self.truncation = truncation
        self.return_tensordict = return_tensordict
        self.device = device

    def __call__(self, sample: Mapping[str, Any]) -> Any:
        """Tokenize a text or a list of n texts.

        Args:
            sample: An example: under `key`, a string or a list of strings.

        Returns:
            `input_ids` and `attention_mask`, int64 [L] for a string and [n, L] for a list, or nested tensors [n, j] if
            the sequences have different lengths.

        Raises:
            InvalidArgumentError: If the example has no such key.
        """
        texts = _column(sample, self.key)
        return self._result(self._encode(texts), [] if isinstance(texts, str) else [len(texts)])

    def _encode(self, texts: str | Sequence[str]) -> Any:
        return self.tokenizer(texts, max_length=self.max_length, padding=self.padding, truncation=self.truncation)

    def _result(self, encoded: Any, batch_size: list[int]) -> Any:
        if not self.return_tensordict:
            return encoded
        tensors = {key: _as_tensor(values) for key, values in encoded.items()}
        return TensorDict(tensors, batch_size=batch_size, device=self.device)


class PromptTensorDictTokenizer(TensorDictTokenizer):
    """Tokenization of prompts with labels: the text of an example is its prompt followed by its label.

        tokens          p_0  p_1  p_2 | l_0  l_1  eos  eos
        prompt_rindex              ^ 2
        mask_label      p_0  p_1    see `PromptData.mask_label`

    `TensorDictTokenizer` describes the arguments. The prompts have the key `key`, by default ``"prompt"``, and the
    labels the key ``"label"``.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_length: int,
        key: str = "prompt",
        padding: str | bool = "max_length",
        truncation: bool = True,
        return_tensordict: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(tokenizer, max_length, key, padding, truncation, return_tensordict, device)

    @override
    def __call__(self, sample: Mapping[str, Any]) -> Any:
        """Tokenize an example or a list of n examples.

        Args:
            sample: Under `key` and ``"label"``, two strings or two lists of n strings.

        Returns:
            The tokens of prompt and label, as from `TensorDictTokenizer`, and with the same leading axis:
            `prompt_rindex`, int64, the index of the last token of the prompt, and `valid_sample`, bool, whether the
            sequence is shorter than L tokens or ends with the end-of-sequence token, so that nothing was cut.

        Raises:
            InvalidArgumentError: If the example has no such key, or the tokenizer pads or cuts on the left.
        """
        prompts, labels = _column(sample, self.key), _column(sample, "label")
        sides = {name: getattr(self.tokenizer, name, "right") for name in ("padding_side", "truncation_side")}
        if left := [name for name, side in sides.items() if side != "right"]:
            raise InvalidArgumentError(
                f"{' and '.join(left)} of the tokenizer is 'left', expected 'right': prompt_rindex counts from the first column",
                hint="assign 'right', as load_tokenizer does",
            )
        if isinstance(prompts, str):
            one = self._encode_pairs([prompts], [labels])
            return self._result({key: values[0] for key, values in one.items()}, [])
        return self._result(self._encode_pairs(prompts, labels), [len(prompts)])

    def _encode_pairs(self, prompts: Sequence[str], labels: Sequence[str]) -> Any:
        alone = self.tokenizer(prompts, max_length=self.max_length, truncation=True)["input_ids"]
        encoded = self._encode([prompt + label for prompt, label in zip(prompts, labels, strict=True)])
        ids = encoded["input_ids"]
        lengths = [sum(mask) for mask in encoded.get("attention_mask", [[1] * len(row) for row in ids])]
        end = self.tokenizer.eos_token_id
        encoded["prompt_rindex"] = [len(row) - 1 for row in alone]
        encoded["valid_sample"] = [
            length < self.max_length or row[-1] == end for length, row in zip(lengths, ids, strict=True)
        ]
        return encoded


def _column(sample: Mapping[str, Any], key: str) -> Any:
    try:
        return sample[key]
    except KeyError as error:
        raise InvalidArgumentError(
            f"the example has no key {key!r}, and has {', '.join(map(str, sample)) or 'none'}",
            hint="rename the columns, or convert the columns in a pre_tokenization_hook",
        ) from error


def _as_tensor(values: Any) -> Tensor:
    """Return token ids as a tensor [L] or [n, L], or as a nested tensor [n, j] if the lengths differ."""
    lengths = {len(row) for row in values if isinstance(row, list)} if isinstance(values, list) else set()
    if len(lengths) > 1:
        rows = [torch.tensor(row, dtype=torch.int64) for row in values]
        return torch.nested.nested_tensor(rows, layout=torch.jagged)
    return torch.as_tensor(values)


def load_tokenizer(tokenizer_class: Any = None, tokenizer_model_name: str | Path | None = None) -> Any:
    """Load a tokenizer that pads sequences with its end-of-sequence token, and pads and cuts on the right.

    Code from the hub is never run.

    Args:
        tokenizer_class: A class with the method `from_pretrained`. By default transformers' AutoTokenizer.
        tokenizer_model_name: A name on the Hugging Face hub or a folder written by `save_pretrained`. By default gpt2.

    Raises:
        MissingDependencyError: If transformers is required and not installed.
        InvalidArgumentError: If there is no such tokenizer, or the tokenizer has no end-of-sequence token.
    """
    name = str(tokenizer_model_name or DEFAULT_TOKENIZER)
    if tokenizer_class is None:
        with importing("transformers", "rlhf", f"the tokenizer {name!r}"):
            from transformers import AutoTokenizer
        tokenizer_class = AutoTokenizer
    # Without an explicit False, AutoTokenizer asks on the terminal whether to run the code of a repository.
    options: dict[str, Any] = {"trust_remote_code": False} if tokenizer_class.__name__ == "AutoTokenizer" else {}
    if Settings.from_env().offline:
        options["local_files_only"] = True
    try:
        tokenizer = tokenizer_class.from_pretrained(name, **options)
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(
            f"no tokenizer {name!r} could be loaded: {error}",
            hint="name a model of the Hugging Face hub with a tokenizer that needs no code of the repository, or a folder "
            "written by save_pretrained",
        ) from error
    if tokenizer.eos_token is None:
        raise InvalidArgumentError(
            f"the tokenizer {name!r} has no end-of-sequence token, which is used as padding",
            hint="set eos_token, save the tokenizer with save_pretrained, and name that folder",
        )
    tokenizer.pad_token = tokenizer.eos_token
    # Positions, such as that of the last token of a prompt, count from the first column.
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    return tokenizer


def tokenizer_digest(tokenizer: Any) -> str:
    """Return a digest of the vocabulary and the rules of a tokenizer, equal in every process."""
    kind = type(tokenizer)
    parts: dict[str, Any] = {"class": f"{kind.__module__}.{kind.__qualname__}"}
    if hasattr(tokenizer, "backend_tokenizer"):
        parts["rules"] = json.loads(tokenizer.backend_tokenizer.to_str())
        # Each call sets these two.
        parts["rules"].update(padding=None, truncation=None)
    elif hasattr(tokenizer, "get_vocab"):
        parts["vocabulary"] = tokenizer.get_vocab()
    for name in ("special_tokens_map", "padding_side", "truncation_side"):
        parts[name] = getattr(tokenizer, name, None)
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
