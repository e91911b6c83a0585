"""Texts that are empty, or that differ from another text in spelling alone."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop
from datasets_rl.ted.keys import Key


class TextsUnlike(Check):
    name = "texts_unlike"
    rule = "A text is empty, or equals another text without case, blanks, punctuation, articles and accents."
    why = "One task has two names: a policy that is conditioned on texts learns two tasks from fewer episodes each."
    limits = "Synonyms, and a text that belongs to another task, are not found here."
    merges = {"first": "min", "last": "max"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        return data.texts or "the dataset has no texts"

    def measure(self, block: Block, key: Key) -> Measures:
        codes = block.now(key)[:, 0]
        return {"first": block.minima(codes), "last": block.maxima(codes)}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        texts, name = data.steps.stored.texts(key), data.field(key).name
        used = np.unique(np.concatenate([measures["first"], measures["last"]])).tolist()
        groups: dict[str, list[int]] = defaultdict(list)
        for code in used:
            groups[_folded(texts[code])].append(code)
        for folded, codes in groups.items():
            counts = [int(np.sum(measures["first"] == code)) for code in codes]
            episodes = {
                code: np.flatnonzero((measures["first"] == code) | (measures["last"] == code)) for code in codes
            }
            if not folded:
                found = np.unique(np.concatenate([*episodes.values()]))
                yield Finding(
                    self.name,
                    "proof",
                    f"{name} is empty in {len(found):,} of {len(data.episodes):,} episodes",
                    episodes=tuple(found.tolist()),
                    evidence={"episodes": len(found)},
                    remedy=drop(found.tolist()),
                    key=name,
                )
                continue
            usual = codes[int(np.argmax(counts))]
            for code in codes:
                if code != usual:
                    yield Finding(
                        self.name,
                        "strong",
                        f"{name} is {texts[code]!r} in {len(episodes[code]):,} episodes, and {texts[usual]!r} in "
                        f"{len(episodes[usual]):,}: the same text in another spelling",
                        episodes=tuple(episodes[code].tolist()),
                        evidence={"text": texts[code], "usual": texts[usual]},
                        remedy="write one text for one task",
                        key=name,
                    )


def _folded(text: str) -> str:
    """Return a text without case, accents, punctuation, articles and repeated blanks."""
    plain = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    words = "".join(letter if letter.isalnum() else " " for letter in plain.casefold()).split()
    return " ".join(word for word in words if word not in {"a", "an", "the"}) or " ".join(words)
