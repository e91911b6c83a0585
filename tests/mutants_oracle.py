"""Changed files with an oracle: the right values, or none if the files must be refused or the user must be asked."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from datasets_rl import download
from datasets_rl.errors import ConversionError, IntegrityError, NotADatasetError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings

ANSWERS = ("right", "counted", "asked", "refused", "wrong", "crashed")
"""What is said about a mutant, from the best answer to the worst.

right      the values are the right ones
counted    the values are not those of the original files, and a decision says so
asked      refused with a question that dataset.toml answers
refused    refused
wrong      stored, and the values are not the right ones: silently wrong
crashed    another exception than one about the files
"""
REFUSALS = (ConversionError, NotADatasetError, IntegrityError)


@dataclass(frozen=True)
class Truth:
    """Values that are right for a mutant."""

    lengths: Sequence[int]
    columns: Mapping[str, Any]
    """Values of all steps, [N, ...], by the dotted key."""
    loss: float = 1e-6
    """Greatest difference of a value."""

    def problems(self, stored: StoredDataset) -> Iterator[str]:
        """Yield how a stored dataset differs."""
        found = stored.episodes.lengths.tolist()
        if found != [*self.lengths]:
            yield f"episodes of {found} steps, expected {[*self.lengths]}"
            return
        keys = {".".join(column.key): column.key for column in stored.schema}
        for name, expected in self.columns.items():
            if name not in keys:
                yield f"no {name}, only {', '.join(keys)}"
                continue
            values, wanted = np.asarray(stored.column(keys[name])[:]), np.asarray(expected)
            if wanted.dtype.kind == "U":
                values = np.array(stored.texts(keys[name]))[values]
            if values.size != wanted.size or values.shape[: wanted.ndim] != wanted.shape:
                yield f"{name} is {list(values.shape)}, expected {list(wanted.shape)}"
            elif values.dtype.kind not in "biuf" or wanted.dtype.kind not in "biuf":
                if values.tolist() != wanted.tolist():
                    yield f"{name} has other values"
            elif not np.allclose(
                values.reshape(wanted.shape).astype(np.float64),
                wanted.astype(np.float64),
                rtol=1e-6,
                atol=self.loss,
                equal_nan=True,
            ):
                yield f"{name} has other values"


@dataclass(frozen=True)
class FileMutant:
    """Changed files."""

    mutation: str
    """Name of the change, without the layout."""
    layout: str
    write: Callable[[Path], Path]
    """Writes the files into a folder, and returns the path that the user names."""
    truths: Sequence[Truth] = ()
    """Any of these values is right. Without truths, the files must be refused."""
    counted: Sequence[str] = ()
    """Rules of decisions, of which one must be counted if the files are not refused."""
    toml: str = ""
    """The user's description."""

    def __str__(self) -> str:
        return f"{self.layout}: {self.mutation}"


@dataclass
class Judge:
    """Downloads mutants, and compares what is stored with their oracles."""

    folder: Path
    number: int = 0
    said: dict[str, str] = field(default_factory=dict)
    """The error, or what is wrong, by mutant."""

    def answer(self, mutant: FileMutant) -> str:
        """Return an item of `ANSWERS`."""
        self.number += 1
        place, home = self.folder / f"m{self.number}" / "mine", self.folder / f"h{self.number}"
        place.mkdir(parents=True)
        try:
            return self._answer(mutant, place, Settings(home=home, progress=False, jobs=1))
        finally:
            shutil.rmtree(place.parent)
            shutil.rmtree(home, ignore_errors=True)

    def _answer(self, mutant: FileMutant, place: Path, settings: Settings) -> str:
        path = mutant.write(place)
        if mutant.toml:
            (place / "dataset.toml").write_text(mutant.toml)
            path = place
        try:
            stored = StoredDataset(download(str(path), settings=settings))
        except REFUSALS as error:
            self.said[str(mutant)] = f"{error}\n    {error.hint}"
            return "asked" if "dataset.toml" in f"{error}{error.hint}" else "refused"
        except Exception as error:  # noqa: BLE001 - whatever a user would see as a traceback
            self.said[str(mutant)] = f"{type(error).__name__}: {error}"
            return "crashed"
        found = {decision.rule: decision.count for decision in stored.manifest.decisions}
        problems = [[*truth.problems(stored)] for truth in mutant.truths]
        missing = bool(mutant.counted) and not any(found.get(rule) for rule in mutant.counted)
        self.said[str(mutant)] = f"{problems}, {found}"
        if missing or not mutant.truths or all(problems):
            return "wrong"
        return "counted" if mutant.counted else "right"
