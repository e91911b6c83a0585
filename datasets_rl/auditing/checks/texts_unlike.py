"""Texts that are empty, or that differ from another text in spelling alone."""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding, counted
from datasets_rl.auditing.remedy import drop
from datasets_rl.ted.keys import Key

_RARE = 0.2
_LETTERS = 4


class TextsUnlike(Check):
    name = "texts_unlike"
    rule = (
        "A text is empty, or equals another text without case, blanks, punctuation, articles and accents. A hint: a single word differs by "
        f"one letter, is in no other text, and the text has at most {_RARE:.0%} of the episodes of the other text."
    )
    why = "One task has two names: a policy that is conditioned on texts learns two tasks from fewer episodes each."
    limits = "Synonyms, two wrong letters, and a text that belongs to another task are not found here."
    merges = {"first": "min", "last": "max"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        return data.texts or "the dataset has no texts"

    def measure(self, block: Block, key: Key) -> Measures:
        codes = block.now(key)[:, 0]
        return {"first": block.minima(codes), "last": block.maxima(codes)}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        texts, name = data.steps.stored.texts(key), data.field(key).name
        first, last = measures["first"], measures["last"]
        episodes = _episodes_of_codes(first, last)
        groups: dict[str, list[int]] = defaultdict(list)
        for code in episodes:
            groups[_folded(texts[code])].append(code)
        if empty := groups.pop("", []):
            found = np.unique(np.concatenate([episodes[code] for code in empty]))
            yield Finding(
                self.name,
                "proof",
                f"{name} is empty in {len(found):,} of {len(data.episodes):,} episodes",
                episodes=tuple(found.tolist()),
                evidence={"episodes": len(found)},
                remedy=drop(found.tolist()),
                key=name,
            )
        for codes in groups.values():
            usual = max(codes, key=lambda code: len(episodes[code]))
            for code in codes:
                if code != usual:
                    yield self._finding(name, texts, code, usual, episodes)
        usual_codes = {folded: max(codes, key=lambda code: len(episodes[code])) for folded, codes in groups.items()}
        counts = {folded: len(episodes[code]) for folded, code in usual_codes.items()}
        for wrong, right in _misspelled(counts):
            yield self._finding(name, texts, usual_codes[wrong], usual_codes[right], episodes, sure=False)

    def _finding(
        self,
        name: str,
        texts: Sequence[str],
        code: int,
        usual: int,
        episodes: Mapping[int, NDArray[np.int64]],
        *,
        sure: bool = True,
    ) -> Finding:
        what = "the same text in another spelling" if sure else "the texts differ in one letter, which may be an error"
        return Finding(
            self.name,
            "strong" if sure else "hint",
            f"{name} is {texts[code]!r} in {counted(len(episodes[code]), 'episode')}, and {texts[usual]!r} in {len(episodes[usual]):,}: {what}",
            episodes=tuple(episodes[code].tolist()),
            evidence={"text": texts[code], "usual": texts[usual]},
            remedy=f"store {texts[usual]!r} in place of {texts[code]!r}, if both are one task",
            key=name,
        )


def _episodes_of_codes(first: NDArray[np.int64], last: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    """Return the episodes, ascending, by the code of a text that they have, given their least and greatest codes, [E]."""
    others = np.flatnonzero(first != last)
    codes = np.concatenate([first, last[others]])
    episodes = np.concatenate([np.arange(len(first)), others])
    order = np.lexsort((episodes, codes))
    used, starts = np.unique(codes[order], return_index=True)
    return dict(zip(used.tolist(), np.split(episodes[order], starts[1:]), strict=True))


def _folded(text: str) -> str:
    """Return a text without case, accents, punctuation, articles and repeated blanks."""
    plain = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    words = "".join(letter if letter.isalnum() else " " for letter in plain.casefold()).split()
    return " ".join(word for word in words if word not in {"a", "an", "the"}) or " ".join(words)


def _misspelled(counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield pairs of a rare text and a frequent text, which differ by a letter of a word that is in no other text.

    Args:
        counts: The number of episodes of each text.
    """
    uses = Counter(word for text in counts for word in set(text.split()))
    alike: dict[tuple[str, ...], list[tuple[str, str]]] = defaultdict(list)
    for text in counts:
        words = text.split()
        for place, word in enumerate(words):
            alike[(*words[:place], "", *words[place + 1 :])].append((word, text))
    for group in alike.values():
        frequent: dict[str, list[str]] = defaultdict(list)
        for word, text in group:
            if counts[text] * _RARE >= 1:
                for pattern in _patterns(word):
                    frequent[pattern].append(text)
        for word, text in group if frequent else ():
            if uses[word] == 1:
                near = dict.fromkeys(other for pattern in _patterns(word) for other in frequent.get(pattern, ()))
                yield from ((text, other) for other in near if counts[text] <= _RARE * counts[other])


def _patterns(word: str) -> Iterator[str]:
    """Yield a word without digits with a blank for each letter, and between letters.

    Two words have a common pattern if they differ by a letter that is missing, added, or another.
    """
    if len(word) >= _LETTERS and word.isalpha():
        yield from (f"{word[:place]} {word[place + 1 :]}" for place in range(len(word)))
        yield from (f"{word[:place]} {word[place:]}" for place in range(len(word) + 1))
