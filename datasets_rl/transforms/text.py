"""Hashing and tokenization of text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import CompositeSpec
from datasets_rl.transforms.base import Keys, NestedKey, Transform, any_like, get_entry
from datasets_rl.transforms.unary import UnaryTransform, items_of, map_items, set_entry

__all__ = ["Hash", "Tokenizer"]


class Hash(UnaryTransform):
    """Replace text by its hash, a tensor of fixed size.

    Args:
        in_keys: Keys of text, or of other objects that the function accepts.
        out_keys: Keys of the hashes.
        in_keys_inv: Keys of the texts that `inv` writes, one for each hash.
        out_keys_inv: Keys of the hashes that `inv` reads.
        hash_fn: Function from an object to a tensor; by default SHA-256 of the text, uint8 [32], the same in every
            process.
        seed: Seed that the default function hashes together with the text.
        repertoire: Texts by the elements of their hash, for the lookup by `inv`. If this argument or `in_keys_inv` is
            given, the transform adds every text that it hashes.
    """

    def __init__(
        self,
        in_keys: Keys,
        out_keys: Keys,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
        *,
        hash_fn: Callable[[Any], Any] | None = None,
        seed: int | None = None,
        repertoire: dict[tuple[int, ...], Any] | None = None,
    ) -> None:
        self.seed, self._hash_fn = seed, hash_fn
        self.repertoire = {} if repertoire is None else dict(repertoire)
        self._records = in_keys_inv is not None or repertoire is not None
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv, fn=self._hash, inv_fn=self._look_up)

    def _hash(self, value: Any) -> Tensor:
        digest = torch.as_tensor(self._sha256(value) if self._hash_fn is None else self._hash_fn(value))
        if self._records:
            self.repertoire[_digest_elements(digest)] = value
        return digest

    def _sha256(self, value: Any) -> Tensor:
        text = str(value) if self.seed is None else f"{self.seed}:{value}"
        return torch.frombuffer(bytearray(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8)

    @override
    def invert_value(self, value: Any) -> Any:
        return [self.invert_value(item) for item in value] if value.ndim > 1 else self._look_up(value)

    def _look_up(self, digest: Tensor) -> Any:
        try:
            return self.repertoire[_digest_elements(digest)]
        except KeyError:
            raise InvalidArgumentError(
                f"none of the {len(self.repertoire)} texts of the repertoire has the hash {digest.tolist()}",
                hint="pass the texts and their hashes as repertoire=...",
            ) from None

    def _repr_arguments(self) -> dict[str, Any]:
        return {} if self.seed is None else {"seed": self.seed}


class Tokenizer(Transform):
    """Replace text by token ids, int64 [..., L]; shorter texts are padded to the length of the longest one.

        >>> Tokenizer(["instruction"], ["tokens"], tokenizer=AutoTokenizer.from_pretrained("..."))
        >>> Tokenizer(["instruction"], ["tokens"], tokenizer=lambda text: list(text.encode()), max_length=64)

    Args:
        in_keys: Keys of the texts.
        out_keys: Keys of the token ids; ``"attention_mask"`` in the same group is True for tokens and False for
            padding.
        in_keys_inv: Keys of the texts that `inv` writes.
        out_keys_inv: Keys of the token ids that `inv` reads.
        tokenizer: Tokenizer of `transformers` or `tokenizers`, or any function from a text to token ids. This class
            neither imports nor downloads anything.
        skip_special_tokens: Whether `inv` leaves out special tokens.
        add_special_tokens: Whether the tokenizer adds special tokens; ignored for a function.
        max_length: L for every batch: longer texts are truncated. By default L is the length of the longest text of the
            batch.
        padding: Token id of the padding; 0 by default.
        return_attention_mask: Whether to write the mask.

    Raises:
        InvalidArgumentError: If the tokenizer is not callable and has no method `encode`.
    """

    def __init__(
        self,
        in_keys: Keys,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
        *,
        tokenizer: Any,
        skip_special_tokens: bool = True,
        add_special_tokens: bool = False,
        max_length: int | None = None,
        padding: int = 0,
        return_attention_mask: bool = True,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        if not callable(tokenizer) and not hasattr(tokenizer, "encode"):
            raise InvalidArgumentError(
                f"tokenizer is {tokenizer!r}; expected a callable, or an object with a method encode"
            )
        self.tokenizer = tokenizer
        self.skip_special_tokens, self.add_special_tokens = skip_special_tokens, add_special_tokens
        self.max_length, self.padding, self.return_attention_mask = max_length, padding, return_attention_mask

    @override
    def apply(self, batch: Any) -> Any:
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            tokens = map_items(self._encode, items_of(get_entry(batch, in_key)))
            lines = list(_token_lists(tokens))
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
                "the number of tokens of a batch depends on its texts; expected a fixed length", hint="pass max_length"
            )
        for out_key in self.out_keys:
            shape = (*spec.shape, self.max_length)
            spec.set(out_key, any_like(torch.zeros(shape, dtype=torch.int64)))
            if self.return_attention_mask:
                spec.set(_mask_key(out_key), any_like(torch.zeros(shape, dtype=torch.bool)))

    @override
    def apply_inv(self, batch: Any) -> Any:
        for in_key, out_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            set_entry(batch, in_key, self._decode_text(get_entry(batch, out_key).tolist()))
        return batch

    def _decode_text(self, tokens: list[Any]) -> Any:
        if tokens and isinstance(tokens[0], list):
            return [self._decode_text(item) for item in tokens]
        while tokens and tokens[-1] == self.padding:
            tokens = tokens[:-1]
        return self.tokenizer.decode(tokens, skip_special_tokens=self.skip_special_tokens)

    def _repr_arguments(self) -> dict[str, Any]:
        return {"max_length": self.max_length}


def _digest_elements(digest: Tensor) -> tuple[int, ...]:
    return tuple(digest.reshape(-1).tolist())


def _token_lists(tokens: Any) -> Iterator[tuple[int, ...]]:
    """Yield the token ids of each text of nested lists."""
    if isinstance(tokens, tuple):
        yield tokens
    else:
        for item in tokens:
            yield from _token_lists(item)


def _mask_key(key: NestedKey) -> NestedKey:
    return "attention_mask" if isinstance(key, str) else (*key[:-1], "attention_mask")
