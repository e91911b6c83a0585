"""The audit of a dataset: one pass over the fields that the checks look at, in blocks, on all cores."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from datasets_rl import disk
from datasets_rl.auditing._threads import one_matrix_thread
from datasets_rl.auditing.block import Block, merge
from datasets_rl.auditing.checks import CHECKS, check_class
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import LEVELS, Audit, Finding
from datasets_rl.auditing.lengths import LengthControl, control
from datasets_rl.auditing.remedy import doubted, without_seams
from datasets_rl.errors import DatasetsRLError, InvalidArgumentError, join_names
from datasets_rl.format.manifest import converter_version
from datasets_rl.format.reader import StoredDataset
from datasets_rl.look.steps import StepReader
from datasets_rl.progress import report
from datasets_rl.read.threads import core_count
from datasets_rl.settings import Settings
from datasets_rl.store.find import locate, shown_id
from datasets_rl.store.layout import AUDIT_FOLDER
from datasets_rl.ted.keys import dotted_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from datasets_rl.auditing.base import Check, Measures
    from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay
    from datasets_rl.datasets.streamed import StreamedExperienceReplay
    from datasets_rl.ted.keys import Key

_NARROW_BYTES = 4 << 20
_WIDE_BYTES = 24 << 20
_PARTS = 16
"""Number of parts in which the measures are kept during the audit: an interrupted audit repeats a single part."""
_KEEP_AFTER = 2.0
"""Seconds between two times at which measures are kept. A short audit writes nothing."""


def audit(
    dataset: str | Path | BaseDatasetExperienceReplay | StreamedExperienceReplay,
    *,
    checks: Sequence[str] | None = None,
    root: Path | str | None = None,
    settings: Settings | None = None,
) -> Audit:
    """Look for faults in the data of a dataset, and return the findings.

    The checks, what each finds, misses and takes for a fault, are listed in docs/audit.md. An audit that was interrupted
    continues where the audit stopped.

        >>> from datasets_rl import audit, load
        >>> audit(load("demo/pendulum"), checks=["not_finite"]).findings
        ()

    Args:
        dataset: The id or the folder of a stored dataset, or an open dataset. The episodes of a stream are stored on the disk
            during the audit, which compares all of them. A selection of episodes bounds the space.
        checks: Names of the checks to make, by default all.
        root: The folder of the source. By default ``<RLDS_HOME>/<source>``.
        settings: The settings. By default the settings of the environment.

    Raises:
        InvalidArgumentError: If there is no check with a name. The error has the names.
        UnknownIdError: If there is no such id, or the dataset is not stored.
        ManifestError: If the manifest cannot be trusted.
    """
    chosen = _chosen(checks)
    settings = settings or Settings.from_env()
    if isinstance(dataset, (str, Path)):
        steps, name = open_steps(dataset, root=root, settings=settings)
        return audit_steps(steps, chosen, name=name, settings=settings)
    from datasets_rl.datasets.acting import step_reader
    from datasets_rl.datasets.streamed import StreamedExperienceReplay

    if isinstance(dataset, StreamedExperienceReplay):
        with dataset.stream.written() as stored:
            return audit_steps(StepReader(stored), chosen, name=dataset.dataset_id, settings=settings)
    steps = step_reader(dataset)
    return audit_steps(steps, chosen, name=steps.stored.manifest.id, settings=settings)


def open_steps(dataset: str | Path, *, root: Path | str | None, settings: Settings) -> tuple[StepReader, str]:
    """Return the steps of a stored dataset, and the id under which the dataset is shown.

    Raises:
        UnknownIdError: If there is no such id, or the dataset is not stored.
        ManifestError: If the manifest cannot be trusted.
    """
    folder = locate(dataset, root=root, settings=settings)
    stored = StoredDataset(folder)
    return StepReader(stored), shown_id(folder, stored.manifest.id, settings=settings)


def open_members(datasets: Sequence[str | Path], *, settings: Settings) -> list[tuple[str, Data]]:
    """Return several stored datasets to audit together, each with the id under which it is shown. Two with the same id are shown as they were given.

    Raises:
        UnknownIdError: If there is no such id, or a dataset is not stored.
        ManifestError: If a manifest cannot be trusted.
    """
    opened = [(one, *open_steps(one, root=None, settings=settings)) for one in datasets]
    shown = Counter(name for _, _, name in opened)
    return [(name if shown[name] == 1 else str(one), Data(steps)) for one, steps, name in opened]


def _chosen(names: Sequence[str] | None) -> list[Check]:
    unknown = [name for name in names or () if name not in CHECKS]
    if unknown:
        several = f"checks are {join_names(unknown)}, expected names of"
        found = several if len(unknown) > 1 else f"check is {unknown[0]!r}, expected one of"
        raise InvalidArgumentError(f"{found} {', '.join(CHECKS)}")
    return [check_class(name)() for name in (CHECKS if names is None else dict.fromkeys(names))]


@dataclass(frozen=True, slots=True)
class _Look:
    """A check and the field it looks at."""

    check: Check
    key: Key

    @property
    def name(self) -> str:
        return f"{self.check.name}/{dotted_name(self.key)}"


def audit_steps(steps: StepReader, checks: Sequence[Check], *, name: str, settings: Settings) -> Audit:
    """Make checks of the steps of a dataset."""
    # Values that are not finite are findings, and differences of infinite values need no warning.
    with one_matrix_thread(), np.errstate(invalid="ignore"):
        return _audited(Data(steps), checks, name, settings)


def _audited(data: Data, checks: Sequence[Check], name: str, settings: Settings) -> Audit:
    looks, skipped = _looks(data, checks)
    measured = _measured(data, looks, name, settings)
    findings: list[Finding] = []
    for check in checks:
        of_check = {look.key: measured.get(look.name, {}) for look in looks if look.check is check}
        if of_check:
            findings += check.conclude(data, of_check)
    return Audit(
        id=name,
        steps=len(data),
        episodes=len(data.episodes),
        findings=tuple(without_seams(sorted(doubted(findings), key=lambda one: LEVELS.index(one.level)))),
        checked=tuple(check.name for check in checks if check.name not in skipped),
        skipped=skipped,
        lengths=tuple(_controls(data, looks, measured, findings)),
    )


def score_steps(
    steps: StepReader, checks: Sequence[Check], *, name: str, settings: Settings
) -> dict[tuple[str, str], NDArray[np.float64]]:
    """Return the score of each episode, [E], by the name of the check and the dotted key of its field."""
    data = Data(steps)
    looks, _ = _looks(data, checks)
    measured = _measured(data, looks, name, settings)
    found = {(look.check.name, dotted_name(look.key)): _score(data, look, measured) for look in looks}
    return {look: score for look, score in found.items() if score is not None}


def _looks(data: Data, checks: Sequence[Check]) -> tuple[list[_Look], dict[str, str]]:
    """Return the checks with their fields, and the reason by the name of each check that does not apply."""
    looks, skipped = [], {}
    for check in checks:
        targets = check.targets(data)
        if isinstance(targets, str):
            skipped[check.name] = targets
        else:
            looks += [_Look(check, key) for key in targets]
    return looks, skipped


def _score(data: Data, look: _Look, measured: Mapping[str, Measures]) -> NDArray[np.float64] | None:
    return look.check.score(data, look.key, measured[look.name]) if look.name in measured else None


def _controls(
    data: Data, looks: Sequence[_Look], measured: Mapping[str, Measures], findings: Sequence[Finding]
) -> Iterator[LengthControl]:
    """Yield what the length of episodes has to do with the score of each look, where both vary."""
    for look in looks:
        key = dotted_name(look.key)
        named = np.zeros(len(data.episodes), np.bool_)
        for finding in findings:
            # A finding about several fields names none of them, or the first.
            if finding.check == look.check.name and (not finding.key or not key or finding.key == key):
                named[list(finding.episodes)] = True
        found = control(look.check.name, key, _score(data, look, measured), named, data.episodes.lengths)
        if found is not None:
            yield found


def _measured(data: Data, looks: Sequence[_Look], name: str, settings: Settings) -> dict[str, Measures]:
    """Return the measures of all episodes by the name of the look. Parts that an earlier audit left are used."""
    walks = [*_walks(data, looks)]
    parts = [(walk, part) for walk in walks for part in _parts(walk.edges)]
    kept = _Kept(settings.home, _digest(data, looks, parts))
    found: dict[str, list[Measures]] = {}
    with (
        report(
            f"auditing {name}",
            sum(int(part[-1] - part[0]) for _, part in parts),
            unit=" steps",
            show=settings.progress,
        ) as advance,
        ThreadPoolExecutor(core_count(), thread_name_prefix="rlds-audit") as pool,
    ):
        for number, (walk, part) in enumerate(parts):
            measures = kept.read(number)
            if measures is None:
                measures = _measured_part(data, walk, part, pool.map)
                kept.add(number, measures)
            for look in measures:
                found.setdefault(look, []).append(measures[look])
            advance(int(part[-1] - part[0]))
    joined = {look.name: _joined(look.check.merges, found[look.name]) for look in looks if look.name in found}
    kept.discard()
    return joined


class _Kept:
    """The measures of parts of an unfinished audit, each a file, ``<home>/.audit/<digest>/<part>.npz``.

    A home that cannot be written, or is full, keeps nothing, and the audit continues.

    Args:
        home: The folder of all sources.
        digest: Digest of what is measured.
    """

    def __init__(self, home: Path, digest: str) -> None:
        self._home, self._folder = home, home / AUDIT_FOLDER / digest
        self._pending: dict[int, dict[str, Measures]] = {}
        self._written = time.monotonic()

    def read(self, number: int) -> dict[str, Measures] | None:
        """Return the measures of a part, or None if the part is not kept, or cannot be read."""
        try:
            with np.load(self._folder / f"{number}.npz", allow_pickle=False) as arrays:
                found: dict[str, Measures] = {}
                for name in arrays.files:
                    look, _, measure = name.rpartition(":")
                    found.setdefault(look, {})[measure] = arrays[name]
                return found
        except (OSError, ValueError, EOFError, BadZipFile):
            return None

    def add(self, number: int, measures: dict[str, Measures]) -> None:
        """Keep the measures of a part, once enough seconds have passed."""
        self._pending[number] = measures
        if time.monotonic() - self._written < _KEEP_AFTER:
            return
        with suppress(OSError, DatasetsRLError):
            disk.make_folder(self._folder)
            for part, of_part in self._pending.items():
                stream = io.BytesIO()
                arrays: dict[str, Any] = {
                    f"{look}:{name}": values for look, one in of_part.items() for name, values in one.items()
                }
                np.savez(stream, **arrays)
                disk.write_bytes(self._folder / f"{part}.npz", stream.getvalue())
        self._pending.clear()
        self._written = time.monotonic()

    def discard(self) -> None:
        """Delete the kept measures."""
        if self._folder.is_dir():
            with suppress(OSError, DatasetsRLError):
                disk.remove_tree(self._folder, self._home)
                disk.remove_empty(self._folder.parent)


@dataclass(frozen=True, slots=True)
class _Walk:
    """Looks at blocks of rows, between the edges."""

    looks: tuple[_Look, ...]
    edges: tuple[int, ...]


def _walks(data: Data, looks: Sequence[_Look]) -> Iterator[_Walk]:
    """Yield a walk over the narrow fields, and a walk over each wide field, so that each image is decoded once."""
    measuring = [look for look in looks if look.check.merges]
    wide = dict.fromkeys(look.key for look in measuring if look.key and data.field(look.key).wide)
    narrow = tuple(look for look in measuring if look.key not in wide)
    if narrow:
        yield _Walk(narrow, _edges(data, max(1, _NARROW_BYTES // max(data.steps.stored.schema.record.itemsize, 1))))
    for key in wide:
        rows = max(1, _WIDE_BYTES // max(data.field(key).step_bytes, 1))
        yield _Walk(tuple(look for look in measuring if look.key == key), _edges(data, rows))


def _edges(data: Data, rows: int) -> tuple[int, ...]:
    """Return the first rows of blocks of about so many rows, and the number of rows. Short episodes stay whole."""
    stops, edges = data.episodes.stops, [0]
    while edges[-1] < len(data):
        target = edges[-1] + rows
        whole = int(np.searchsorted(stops, target, side="right")) - 1
        edge = int(stops[whole]) if whole >= 0 else 0
        edges.append(edge if edge > edges[-1] else min(target, len(data)))
    return tuple(edges)


def _parts(edges: Sequence[int]) -> Iterator[Sequence[int]]:
    size = max(1, -(-(len(edges) - 1) // _PARTS))
    for start in range(0, len(edges) - 1, size):
        yield edges[start : start + size + 1]


def _measured_part(
    data: Data, walk: _Walk, edges: Sequence[int], each: Callable[..., Iterable[Any]]
) -> dict[str, Measures]:
    """Return the measures of the blocks between edges by the name of the look."""

    def measure(start: int, stop: int) -> dict[str, Measures]:
        block = Block(data, start, stop)
        measures = {
            look.name: {"episode": block.episodes, **look.check.measure(block, look.key)} for look in walk.looks
        }
        data.steps.stored.release_pages()
        return measures

    blocks = [*each(measure, edges[:-1], edges[1:])]
    return {look.name: _joined(look.check.merges, [block[look.name] for block in blocks]) for look in walk.looks}


def _joined(merges: Mapping[str, str], parts: Sequence[Measures]) -> Measures:
    """Return the measures of consecutive blocks as measures of episodes: parts of an episode are merged."""
    result: dict[str, list[Any]] = {"episode": [], **{name: [] for name in merges}}
    for part in parts:
        first = 0
        if result["episode"] and result["episode"][-1][-1] == part["episode"][0]:
            last = {name: result[name][-1][-1] for name in merges}
            merged = merge(merges, last, {name: part[name][0] for name in merges})
            for name in merges:
                result[name][-1] = np.concatenate([result[name][-1][:-1], np.asarray(merged[name])[None]])
            first = 1
        for name, values in result.items():
            if len(part["episode"]) > first:
                values.append(part[name][first:])
    return {name: np.concatenate(values) for name, values in result.items()}


def _digest(data: Data, looks: Sequence[_Look], parts: Sequence[tuple[_Walk, Sequence[int]]]) -> str:
    rows = data.steps.rows
    chosen = (
        ""
        if rows is None
        else hashlib.sha256(np.ascontiguousarray(data.episodes.records["start"]).tobytes()).hexdigest()
    )
    edges = [[*map(int, part)] for _, part in parts]
    text = json.dumps(
        [data.steps.stored.manifest.digest, converter_version(), [look.name for look in looks], chosen, edges]
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]
