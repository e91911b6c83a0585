"""Hashing and tokenization of text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import CompositeSpec
from datasets_rl.transforms.base import Keys, NestedKey, Transform, any_like, get_entry
from datasets_rl.transforms.unary import UnaryTransform, items_of, map_items, set_entry


class Hash(UnaryTransform):
    """Replace text by its hash, a tensor of fixed size.

    Args:
        in_keys: Keys of text, or of other objects that the function accepts.
        out_keys: Keys of the hashes.
        in_keys_inv: Keys of the texts that `inv` writes, one for each hash.
        out_keys_inv: Keys of the hashes that `inv` reads.
        hash_fn: Function from an object to a tensor, or with `seed` from an object and the seed, by default
            `reproducible_hash`.
        seed: Seed of the function.
        use_raw_nontensor: Whether the function receives the non-tensor entry of the TensorDict itself instead of its
            items.
        repertoire: Texts by the elements of their hash, see `hash_to_repertoire_key`, for the lookup by `inv`. If this
            argument or `in_keys_inv` is given, the transform adds every text that it hashes, without a copy of the
            dict.
    """

    def __init__(
        self,
        in_keys: Keys,
        out_keys: Keys,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
        *,
        hash_fn: Callable[..., Any] | None = None,
        seed: Any = None,
        use_raw_nontensor: bool = False,
        repertoire: dict[Any, Any] | None = None,
    ) -> None:
        super().__init__(
            in_keys,
            out_keys,
            in_keys_inv,
            out_keys_inv,
            fn=self.reproducible_hash if hash_fn is None else hash_fn,
            inv_fn=self.get_input_from_hash,
            use_raw_nontensor=use_raw_nontensor,
        )
        self.seed = seed
        self.repertoire = {} if repertoire is None else repertoire
        self._records = in_keys_inv is not None or repertoire is not None

    @staticmethod
    def reproducible_hash(string: Any, seed: Any = None) -> Tensor:
        """Return the SHA-256 of a seed followed by a text, uint8 [32], the same in every process.

        `None` is the empty text.
        """
        text = f"{'' if seed is None else seed}{'' if string is None else string}"
        return torch.frombuffer(bytearray(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8)

    @staticmethod
    def hash_to_repertoire_key(hash_tensor: Any) -> Any:
        """Return the key of a hash in the repertoire: its elements, as nested tuples.

        The key of a single element is not a tuple.
        """
        elements = hash_tensor.tolist() if isinstance(hash_tensor, Tensor) else hash_tensor
        return tuple(map(Hash.hash_to_repertoire_key, elements)) if isinstance(elements, list) else elements

    @override
    def transform_value(self, value: Any) -> Any:
        return map_items(self._hash, value)

    def _hash(self, value: Any) -> Tensor:
        seed = () if self.seed is None else (self.seed,)
        digest = torch.as_tensor(self.fn(value, *seed))
        if self._records:
            self.repertoire[self.hash_to_repertoire_key(digest)] = value
        return digest

    @override
    def invert_value(self, value: Any) -> Any:
        return [self.invert_value(item) for item in value] if value.ndim > 1 else self.get_input_from_hash(value)

    def get_input_from_hash(self, hash_tensor: Any) -> Any:
        """Return the text or object with a hash.

        Raises:
            InvalidArgumentError: If the repertoire does not contain the hash.
        """
        try:
            return self.repertoire[self.hash_to_repertoire_key(hash_tensor)]
        except KeyError:
            elements = hash_tensor.tolist() if isinstance(hash_tensor, Tensor) else hash_tensor
            raise InvalidArgumentError(
                f"none of the {len(self.repertoire)} texts of the repertoire has the hash {elements}",
                hint="pass the texts and their hashes as repertoire=...",
            ) from None

    def _repr_arguments(self) -> dict[str, Any]:
        return {} if self.seed is None else {"seed": self.seed}


class Tokenizer(Transform):
    """Replace text by token ids, int64 [..., L]. Shorter texts are padded to the length of the longest text.

        >>> Tokenizer(["instruction"], ["tokens"], tokenizer=AutoTokenizer.from_pretrained("..."))
        >>> Tokenizer(["instruction"], ["tokens"], tokenizer=lambda text: list(text.encode()), max_length=64)

    Args:
        in_keys: Keys of the texts.
        out_keys: Keys of the token ids. ``"attention_mask"`` in the same group is True for tokens and False for
            padding.
        in_keys_inv: Keys of the texts that `inv` writes.
        out_keys_inv: Keys of the token ids that `inv` reads.
        tokenizer: Tokenizer of `transformers` or `tokenizers`, or any function from a text to token ids. This class
            neither imports nor downloads anything.
        use_raw_nontensor: Whether the tokenizer receives the non-tensor entry of the TensorDict itself, once for the
            batch, instead of text after text.
        additional_tokens: Tokens to add to the vocabulary of the tokenizer, which needs a method `add_tokens`.
        skip_special_tokens: Whether `inv` leaves out special tokens.
        add_special_tokens: Whether the tokenizer adds special tokens. A function ignores this argument.
        max_length: L for every batch: longer texts are truncated. By default L is the length of the longest text of the
            batch.
        padding: Token id of the padding, 0 by default.
        return_attention_mask: Whether to write the mask.

    Raises:
        InvalidArgumentError: If the tokenizer is not callable and has no method `encode`.
    """

    shown = ("max_length",)

    def __init__(
        self,
        in_keys: Keys,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
        *,
        tokenizer: Any = None,
        use_raw_nontensor: bool = False,
        additional_tokens: Sequence[str] | None = None,
        skip_special_tokens: bool = True,
        add_special_tokens: bool = False,
        max_length: int | None = None,
        padding: int = 0,
        return_attention_mask: bool = True,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        if not callable(tokenizer) and not hasattr(tokenizer, "encode"):
            raise InvalidArgumentError(
                f"tokenizer is {tokenizer!r}, expected a callable, or an object with a method encode",
                hint="TorchRL downloads google-bert/bert-base-uncased here: pass a tokenizer that was loaded from files, "
                "such as tokenizer=AutoTokenizer.from_pretrained(FOLDER)",
            )
        if additional_tokens:
            tokenizer.add_tokens(list(additional_tokens))
        self.tokenizer, self.use_raw_nontensor = tokenizer, use_raw_nontensor
        self.skip_special_tokens, self.add_special_tokens = skip_special_tokens, add_special_tokens
        self.max_length, self.padding, self.return_attention_mask = max_length, padding, return_attention_mask

    @override
    def transform_batch(self, batch: Any) -> Any:
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            texts = get_entry(batch, in_key)
            if self.use_raw_nontensor:
                lines = [tuple(line) for line in _nested_lists(self._encode(texts))]
            else:
                lines = list(_token_lists(map_items(self._encode, items_of(texts))))
            length = self.max_length or max(map(len, lines), default=0)
            padded = torch.full((len(lines), length), self.padding, dtype=torch.int64)
            mask = torch.zeros(len(lines), length, dtype=torch.bool)
            for number, line in enumerate(lines):
                padded[number, : len(line)] = torch.tensor(line[:length], dtype=torch.int64)
                mask[number, : len(line)] = True
            batch.set(out_key, padded.reshape(*batch.shape, length))
            if self.return_attention_mask:
                batch.set(_mask_key(out_key), mask.reshape(*batch.shape, length))
        return batch

    def _encode(self, text: str) -> tuple[int, ...]:
        encode = getattr(self.tokenizer, "encode", None)
        options = {} if encode is None else {"add_special_tokens": self.add_special_tokens}
        encoding = (encode or self.tokenizer)(text, **options)
        ids = getattr(encoding, "ids", encoding)
        # A tuple, because `map_items` treats nested lists as the axes of a batch.
        return tuple(ids.tolist() if isinstance(ids, Tensor) else ids)

    def update_specs(self, spec: CompositeSpec) -> None:
        """Add the specs of token ids and masks.

        Raises:
            InvalidArgumentError: If `max_length` is missing, so that the shape depends on the texts.
        """
        if self.max_length is None:
            raise InvalidArgumentError(
                "the number of tokens of a batch depends on its texts, expected a fixed length", hint="pass max_length"
            )
        for out_key in self.out_keys:
            shape = (*spec.shape, self.max_length)
            spec.set(out_key, any_like(torch.zeros(shape, dtype=torch.int64)))
            if self.return_attention_mask:
                spec.set(_mask_key(out_key), any_like(torch.zeros(shape, dtype=torch.bool)))

    @override
    def invert_batch(self, batch: Any) -> Any:
        for in_key, out_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            set_entry(batch, in_key, self._decode_text(get_entry(batch, out_key).tolist()))
        return batch

    def _decode_text(self, tokens: list[Any]) -> Any:
        if tokens and isinstance(tokens[0], list):
            return [self._decode_text(item) for item in tokens]
        while tokens and tokens[-1] == self.padding:
            tokens = tokens[:-1]
        return self.tokenizer.decode(tokens, skip_special_tokens=self.skip_special_tokens)


def _nested_lists(tokens: Any) -> Iterator[list[int]]:
    """Yield the token ids of each text of a batch, given as nested lists of any depth."""
    if tokens and isinstance(tokens[0], (list, tuple)):
        for item in tokens:
            yield from _nested_lists(item)
    else:
        yield list(tokens)


def _token_lists(tokens: Any) -> Iterator[tuple[int, ...]]:
    """Yield the token ids of each text of nested lists."""
    if isinstance(tokens, tuple):
        yield tokens
    else:
        for item in tokens:
            yield from _token_lists(item)


def _mask_key(key: NestedKey) -> NestedKey:
    return "attention_mask" if isinstance(key, str) else (*key[:-1], "attention_mask")
