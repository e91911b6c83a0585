"""Text as numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import CompositeSpec
from datasets_rl.transforms.base import Keys, NestedKey, Transform, any_like, taken
from datasets_rl.transforms.unary import UnaryTransform, each_item, items_of, set_any

__all__ = ["Hash", "Tokenizer"]


class Hash(UnaryTransform):
    """Put a hash in place of text, so that it is a tensor of fixed size.

    Args:
        in_keys: Entries with text, or any objects that the function takes.
        out_keys: Where the hashes are written.
        in_keys_inv: Entries that `inv` writes: the text whose hash is read.
        out_keys_inv: The hashes that it reads.
        hash_fn: From an object to a tensor; by default SHA-256 of its text, uint8 [32], the same in every process.
        seed: Mixed into the default function.
        repertoire: Texts by the numbers of their hashes, that `inv` finds them; what passed this transform is in it.
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
        self._remembers = in_keys_inv is not None or repertoire is not None
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv, fn=self._hashed, inv_fn=self._found)

    def _hashed(self, value: Any) -> Tensor:
        code = torch.as_tensor(self._sha256(value) if self._hash_fn is None else self._hash_fn(value))
        if self._remembers:
            self.repertoire[_numbers(code)] = value
        return code

    def _sha256(self, value: Any) -> Tensor:
        text = str(value) if self.seed is None else f"{self.seed}:{value}"
        return torch.frombuffer(bytearray(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8)

    def each_inv(self, value: Any) -> Any:
        """Return the texts of hashes, [..., n]."""
        return [self.each_inv(one) for one in value] if value.ndim > 1 else self._found(value)

    def _found(self, code: Tensor) -> Any:
        try:
            return self.repertoire[_numbers(code)]
        except KeyError:
            raise InvalidArgumentError(
                f"no text of the {len(self.repertoire)} that are known has the hash {code.tolist()}",
                hint="give the texts as repertoire=",
            ) from None

    def _facts(self) -> dict[str, Any]:
        return {} if self.seed is None else {"seed": self.seed}


class Tokenizer(Transform):
    """Put the numbers of tokens in place of text, int64 [..., L]; shorter texts are padded to the longest one.

        >>> Tokenizer(["instruction"], ["tokens"], tokenizer=AutoTokenizer.from_pretrained("..."))
        >>> Tokenizer(["instruction"], ["tokens"], tokenizer=lambda text: list(text.encode()), max_length=64)

    Args:
        in_keys: Entries with text.
        out_keys: Where the tokens are written; beside them, ``"attention_mask"`` is True where they are no padding.
        in_keys_inv: Entries that `inv` writes: the text of tokens.
        out_keys_inv: The tokens that it reads.
        tokenizer: An object of `transformers` or `tokenizers`, or any callable from a text to numbers. Nothing is
            imported, and nothing downloaded.
        skip_special_tokens: Whether `inv` leaves those out.
        add_special_tokens: Whether the tokenizer adds them, where it has any.
        max_length: L for every batch: longer texts are cut.
        padding: The number that fills up; 0 by default.
        return_attention_mask: Whether the mask is written.
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

    def apply(self, batch: Any) -> Any:
        """Tokenize the entries."""
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            tokens = each_item(self._encoded, items_of(taken(batch, in_key)))
            lines = list(_lines(tokens))
            length = self.max_length or max(map(len, lines), default=0)
            padded = torch.full((len(lines), length), self.padding, dtype=torch.int64)
            mask = torch.zeros(len(lines), length, dtype=torch.bool)
            for number, line in enumerate(lines):
                padded[number, : len(line)] = torch.tensor(line[:length], dtype=torch.int64)
                mask[number, : len(line)] = True
            batch.set(out_key, padded.reshape(*batch.shape, length))
            if self.return_attention_mask:
                batch.set(_beside(out_key), mask.reshape(*batch.shape, length))
        return batch

    def _encoded(self, text: str) -> tuple[int, ...]:
        encode = getattr(self.tokenizer, "encode", None)
        more = {} if encode is None else {"add_special_tokens": self.add_special_tokens}
        found = (encode or self.tokenizer)(text, **more)
        ids = getattr(found, "ids", found)
        # A tuple: lists are the axes of a batch.
        return tuple(ids.tolist() if isinstance(ids, Tensor) else ids)

    def respec(self, spec: CompositeSpec) -> None:
        """Add the specs of tokens and mask.

        Raises:
            InvalidArgumentError: If their length depends on the texts.
        """
        if self.max_length is None:
            raise InvalidArgumentError("how many tokens a batch has depends on its texts", hint="give max_length")
        for out_key in self.out_keys:
            shape = (*spec.shape, self.max_length)
            spec.set(out_key, any_like(torch.zeros(shape, dtype=torch.int64)))
            if self.return_attention_mask:
                spec.set(_beside(out_key), any_like(torch.zeros(shape, dtype=torch.bool)))

    def apply_inv(self, batch: Any) -> Any:
        """Write the text of tokens."""
        for in_key, out_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            set_any(batch, in_key, self._text(taken(batch, out_key).tolist()))
        return batch

    def _text(self, tokens: list[Any]) -> Any:
        if tokens and isinstance(tokens[0], list):
            return [self._text(one) for one in tokens]
        while tokens and tokens[-1] == self.padding:
            tokens = tokens[:-1]
        return self.tokenizer.decode(tokens, skip_special_tokens=self.skip_special_tokens)

    def _facts(self) -> dict[str, Any]:
        return {"max_length": self.max_length}


def _numbers(code: Tensor) -> tuple[int, ...]:
    return tuple(code.reshape(-1).tolist())


def _lines(tokens: Any) -> Iterator[tuple[int, ...]]:
    """Yield the tokens of each text of nested lists."""
    if isinstance(tokens, tuple):
        yield tokens
    else:
        for one in tokens:
            yield from _lines(one)


def _beside(key: NestedKey) -> NestedKey:
    return "attention_mask" if isinstance(key, str) else (*key[:-1], "attention_mask")
