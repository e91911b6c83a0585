"""A stored dataset for the page: facts, samples, pages of the list of episodes, and single episodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.format.images.columns import ImageColumn
from datasets_rl.format.npy import advise_random_reads
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Field
from datasets_rl.look.page import images
from datasets_rl.look.page.curves import envelope, stride_of, tidy
from datasets_rl.look.page.distributions import sample_ranges
from datasets_rl.look.page.episodes import order
from datasets_rl.look.page.pairs import Pairs
from datasets_rl.ted.keys import EPISODE, NEXT, NEXT_TERMINATED, OBSERVATION, as_key, dotted_name

PAGE_EPISODES = 50
"""Number of episodes on a page of the list."""
PAGE_STEPS = 64
"""Number of rows of an episode that are read at once."""
ELEMENTS = 12
"""Number of elements of a field that are drawn at once."""
_SHOWN_ELEMENTS = 64
"""Number of elements of a field that a row shows."""
_SHOWN_FINDINGS = 200
_SAMPLED_ENDS = 256
_SCALED_IMAGES = 24
_MAX_SCALED_BYTES = 16 << 20
_MAX_RATE = 200
"""Maximum number of steps per second of a recording, as many as a screen shows."""
_FLAGS = {"next.terminated", "next.truncated", "next.done"}


class Panel:
    """A stored dataset on the page.

    Facts, returns and lengths come from the manifest and the episode table. Rows are read for bounded samples and for
    single episodes, so that the size of the dataset does not matter.

    Args:
        stored: The opened dataset.
        name: The id that the page shows, by default the id in the manifest.
        share: The share of the dataset in the batches of a mixture, or None if the dataset is not a member of a mixture.
        findings: What an audit found, as `Finding.to_json` returns it, or None without an audit.
        pairs: The pairs of episodes with the next dataset on the page, or None if the two were not compared.
    """

    def __init__(
        self,
        stored: StoredDataset,
        *,
        name: str = "",
        share: float | None = None,
        findings: Sequence[Mapping[str, Any]] | None = None,
        pairs: Pairs | None = None,
    ) -> None:
        self.stored = stored
        self.findings = findings
        self.pairs = pairs
        self.name = name or stored.manifest.id
        self.share = share
        # Few rows of a large file are read. Some systems would read megabytes around each row.
        for file in {field.file for field in stored.schema}:
            advise_random_reads(stored.map(file))
        self._order = lru_cache(maxsize=4)(self._make_order)
        self._scale = lru_cache(maxsize=256)(self._make_scale)

    @cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Columns of the list of episodes by name, [E] each: the columns of the episode table, and the scores."""
        table = self.stored.episodes
        columns: dict[str, NDArray[Any]] = {"episode": np.arange(len(table)), "return": table["return"]}
        if (score := self._score()) is not None:
            columns["score"] = (table["return"] - score["low"]) / (score["high"] - score["low"])
        columns["length"] = table.lengths
        columns["final_known"] = table["final_known"]
        # A source may have columns of any name.
        return columns | {name: table[name] for name in table.metadata_names if name not in columns}

    def _score(self) -> dict[str, Any] | None:
        """Return the returns with the scores 0 and 1, or None after preprocessing, which may have scaled the rewards."""
        manifest = self.stored.manifest
        return dict(manifest.score) if manifest.score and not manifest.history else None

    def facts(self) -> dict[str, Any]:
        """Return the facts in the manifest and the episode table, as JSON values."""
        manifest = self.stored.manifest
        return {
            "id": self.name,
            "share": self.share,
            "steps": manifest.steps,
            "episodes": manifest.episodes,
            "bytes": manifest.bytes,
            "final_unknown": manifest.final_unknown,
            "time_limit": manifest.time_limit,
            "fps": _rate(manifest.metadata.get("fps")),
            "license": manifest.license,
            "citation": manifest.citation,
            "homepage": manifest.homepage if manifest.homepage.startswith(("http://", "https://")) else "",
            "known_issues": list(manifest.known_issues),
            "findings": self._found(),
            "spikes": list(manifest.spikes),
            "decisions": [{"text": decision.text, "count": decision.count} for decision in manifest.decisions],
            "recipes": [str(run.get("recipe", {}).get("name", "")) for run in manifest.history],
            "selection": bool(manifest.selection),
            "score": self._score(),
            "summary": {
                name: _summary(self.columns[name]) for name in ("return", "score", "length") if name in self.columns
            },
            "fields": [self._describe(field) for field in self.stored.schema if field.key != EPISODE],
            "columns": [name for name in self.columns if not self._is_idle(name)],
        }

    def questioned(self) -> list[int]:
        """Return the first episode in question of each finding, ascending."""
        return sorted({int(one["episodes"][0]) for one in self.findings or () if one["episodes"]})

    def _usual_episode(self) -> int | None:
        """Return an episode of the middle return that no finding names, to look at beside the episodes in question."""
        named = {episode for one in self.findings or () for episode in one["episodes"]}
        returns = np.nan_to_num(self.columns["return"], nan=-np.inf)
        falling = np.argsort(-returns, kind="stable")
        from_middle = np.argsort(np.abs(np.arange(len(falling)) - len(falling) // 2), kind="stable")
        usual = falling[from_middle][~np.isin(falling[from_middle], [*named])]
        return int(usual[0]) if len(usual) else None

    def _found(self) -> dict[str, Any] | None:
        """Return the findings, at most 200, each with an episode and a step in question, and a usual episode."""
        if self.findings is None:
            return None
        rows = []
        for one in self.findings[:_SHOWN_FINDINGS]:
            episode, step = (int(one["episodes"][0]), 0) if one["episodes"] else (None, 0)
            if episode is not None and one["rows"]:
                row = int(one["rows"][0][0])
                step = max(0, row - int(self.stored.episodes.starts[episode]))
            texts = {name: str(one[name]) for name in ("level", "check", "message", "remedy")}
            rows.append({**texts, "episode": episode, "step": step})
        return {"total": len(self.findings), "usual": self._usual_episode(), "rows": rows}

    def _is_idle(self, name: str) -> bool:
        """Return whether a column is redundant: all of "final_known" is True, or "source" equals "episode"."""
        if name == "final_known":
            return not self.stored.manifest.final_unknown
        return name == "source" and bool((self.columns["source"] == self.columns["episode"]).all())

    def _describe(self, field: Field) -> dict[str, Any]:
        kind = "image" if images.is_image(field) else "text" if field.text else "number"
        return {
            "name": field.name,
            "dtype": "text" if field.text else field.read_dtype.name,
            "shape": list(field.shape),
            "kind": "flag" if field.name in _FLAGS else kind,
            "shared": field.shared,
            "elements": math.prod(field.shape),
            "names": [*self.stored.manifest.element_names(field)] or None,
        }

    def ends(self) -> dict[str, int]:
        """Return the number of ``terminated`` episodes ``of`` a sample of at most 256 episodes across the dataset."""
        table = self.stored.episodes
        chosen = np.unique(np.linspace(0, len(table) - 1, min(len(table), _SAMPLED_ENDS)).astype(np.int64))
        return {"terminated": int(self._terminated(chosen).sum()), "of": len(chosen)}

    def _terminated(self, episodes: NDArray[np.int64]) -> NDArray[np.bool_]:
        last: NDArray[np.bool_] = self.stored.items(NEXT_TERMINATED)[self.stored.episodes.stops[episodes] - 1]  # type: ignore[assignment]
        return last[:, 0]

    def sample(self, name: str, start: int) -> list[NDArray[Any]]:
        """Return values of some elements of a field, [n] each, for distributions.

        Args:
            name: A column of the list of episodes, with all values, or the dotted name of a field, with a sample of the
                rows.
            start: The first element.
        """
        if name in self.columns:
            return [self.columns[name]]
        field = self._field(name)
        parts = [
            self.stored.column(field.key, rows.start, rows.stop).reshape(len(rows), -1)[:, start : start + ELEMENTS]
            for rows in sample_ranges(len(self.stored), field.step_bytes)
        ]
        return list(np.concatenate(parts).T)

    def has(self, name: str) -> bool:
        """Return whether a column of the list of episodes or a field, but not an image field, has this name."""
        known = name in self.columns or as_key(name) in self.stored.schema
        return known and (name in self.columns or not images.is_image(self._field(name)))

    def labels(self, name: str, start: int) -> list[str]:
        """Return the labels of the elements of a field: ``observation[2]``, ``action gripper``, ``reward``."""
        if name in self.columns:
            return [name]
        field = self._field(name)
        count = math.prod(field.shape)
        if count == 1:
            return [name]
        shown = range(start, min(start + ELEMENTS, count))
        if names := self.stored.manifest.element_names(field):
            return [f"{name} {names[element]}" for element in shown]
        indices = (np.unravel_index(element, field.shape) for element in shown)
        return [f"{name}[{','.join(map(str, index))}]" for index in indices]

    def elements(self, name: str) -> int:
        """Return the number of elements of a field, or 1 for a column of the list of episodes."""
        return 1 if name in self.columns else math.prod(self._field(name).shape)

    def texts(self, name: str) -> list[str] | None:
        """Return the vocabulary of a text field, or None for other fields."""
        if name in self.columns or not self._field(name).text:
            return None
        return self.stored.texts(as_key(name))

    def _field(self, name: str) -> Field:
        key = as_key(name)
        if key not in self.stored.schema:
            raise UnknownKeyError(name, [field.name for field in self.stored.schema])
        return self.stored.schema[key]

    def page(self, sort: str, where: str, offset: int, *, descending: bool) -> dict[str, Any]:
        """Return a page of the list of episodes, as JSON values.

        Raises:
            UnknownKeyError: If there is no such column.
            InvalidArgumentError: If the filter cannot be read.
        """
        chosen = self._order(sort, where, descending)
        offset = max(0, min(offset, len(chosen) - 1))
        return {
            "total": len(self.stored.episodes),
            "matching": len(chosen),
            "offset": offset,
            "rows": self.summaries(chosen[offset : offset + PAGE_EPISODES]),
        }

    def summaries(self, episodes: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return the entries of some episodes in the list, as JSON values."""
        ended = self._terminated(episodes)
        columns = {name: tidy(column[episodes]) for name, column in self.columns.items()}
        return [
            {**{name: values[row] for name, values in columns.items()}, "end": _end_text(ended[row])}
            for row in range(len(episodes))
        ]

    def _make_order(self, sort: str, where: str, descending: bool) -> NDArray[np.int64]:
        return order(self.columns, sort, where, descending=descending)

    def episode(self, number: int, sort: str, where: str, *, descending: bool) -> dict[str, Any]:
        """Return an episode, and the previous and next episode in the sorted and filtered list, as JSON values."""
        rows = self._rows(number)
        chosen = self._order(sort, where, descending)
        places = np.flatnonzero(chosen == number)
        near: list[int | None] = [None, None]
        if len(places):
            place = int(places[0])
            near = [
                int(chosen[place - 1]) if place else None,
                int(chosen[place + 1]) if place + 1 < len(chosen) else None,
            ]
        summary = self.summaries(np.array([number]))[0]
        scales = {name: self._scale(number, name) for name in self.image_fields()}
        return {
            **summary,
            "first_row": rows.start,
            "previous": near[0],
            "next": near[1],
            "scales": {name: tidy(np.array(scale)) for name, scale in scales.items() if scale is not None},
        }

    def _make_scale(self, number: int, name: str) -> tuple[float, float] | None:
        """Return the values of an episode that are drawn black and white, or None for images of uint8.

        The values are the least and the greatest value of at most 24 images and 16 MiB across the episode.
        """
        rows, field = self._rows(number), self._field(name)
        if field.dtype == np.uint8:
            return None
        count = max(1, min(_SCALED_IMAGES, _MAX_SCALED_BYTES // field.step_bytes, len(rows)))
        chosen = np.unique(np.linspace(rows.start, rows.stop - 1, count).astype(np.int64))
        return images.scale_of(np.concatenate([self._values(field, row, row + 1) for row in chosen.tolist()]))

    def _rows(self, number: int) -> range:
        if not 0 <= number < len(self.stored.episodes):
            last = len(self.stored.episodes) - 1
            raise InvalidArgumentError(f"{self.name} has no episode {number:,}, expected 0 to {last:,}")
        return self.stored.episodes.rows(number)

    def curves(self, number: int, name: str, start: int) -> dict[str, Any]:
        """Return the curves of some elements of a field over an episode, as JSON values.

        A field with a value at t and at t + 1 has T + 1 values. The last value, after the last action, is absent if the
        value is unknown.

        Args:
            number: The number of the episode.
            name: The dotted name of the field.
            start: The first element.
        """
        rows, field = self._rows(number), self._field(name)
        stride = stride_of(len(rows), field.step_bytes)
        values = self._values(field, rows.start, rows.stop, stride).reshape(-1, math.prod(field.shape))
        values = values[:, start : start + ELEMENTS]
        final = field.shared and self.has_final(field.name, number)
        width, low, high = envelope(values)
        document = {
            "labels": self.labels(name, start),
            "elements": math.prod(field.shape),
            "start": start,
            "stride": stride,
            "steps_per_point": stride * width,
            "low": tidy(low.T),
            "final": tidy(self._final(field, number).reshape(-1)[start : start + ELEMENTS]) if final else None,
        }
        return document if width == 1 else {**document, "high": tidy(high.T)}

    def _values(self, field: Field, start: int, stop: int, stride: int = 1) -> NDArray[Any]:
        """Return values at t of consecutive rows, or of every `stride`-th row."""
        values = np.asarray(self.stored.items(field.key)[start:stop:stride])
        return values if field.memory_dtype is None else values.astype(field.memory_dtype)

    def has_final(self, name: str, number: int) -> bool:
        """Return whether the value of a shared field after the last action of an episode is known."""
        known = bool(self.stored.episodes["final_known"][number])
        return known or as_key(name)[0] != OBSERVATION[0]

    def _final(self, field: Field, number: int) -> NDArray[Any]:
        """Return the value of a shared field after the last action of an episode."""
        value: NDArray[Any] = np.asarray(self.stored.final_states(field.key)[number : number + 1])[0]
        return value if field.memory_dtype is None else value.astype(field.memory_dtype)

    def rows(self, number: int, start: int) -> dict[str, Any]:
        """Return some rows of an episode, as JSON values by field.

        ``steps`` has the values of each row. ``states`` has an additional value, the state after the last of these rows.
        After the last action of the episode this is the final state, or None if the final state is unknown. Images are
        absent. Long fields have the first 64 elements.
        """
        episode = self._rows(number)
        first = episode.start + max(0, min(start, len(episode) - 1))
        stop = min(first + PAGE_STEPS, episode.stop)
        states: dict[str, Any] = {}
        steps: dict[str, Any] = {}
        for field in self.stored.schema:
            if field.key == EPISODE or images.is_image(field):
                continue
            if not field.shared:
                steps[field.name] = self._cells(field, self._values(field, first, stop))
                continue
            cells = self._cells(field, self._values(field, first, min(stop + 1, episode.stop)))
            if stop == episode.stop:
                final = self._cells(field, self._final(field, number)[None])
                cells += final if self.has_final(field.name, number) else [None]
            states[field.name] = cells
        return {"start": first - episode.start, "stop": stop - episode.start, "states": states, "steps": steps}

    def _cells(self, field: Field, values: NDArray[Any]) -> list[Any]:
        """Return values as cells of the page: numbers, lists of numbers, or texts."""
        if field.text:
            texts = self.stored.texts(field.key)
            return [texts[code] if 0 <= code < len(texts) else f"text {code}" for code in values.tolist()]
        flat = values.reshape(len(values), -1)[:, :_SHOWN_ELEMENTS]
        cells: list[Any] = tidy(flat[:, 0] if math.prod(field.shape) == 1 else flat)
        return cells

    def frame(self, number: int, step: int, name: str, *, max_side: int | None = None) -> bytes:
        """Return an image of an episode as the bytes of a PNG or JPEG file.

        Args:
            number: The number of the episode.
            step: The step t, where T, the length of the episode, is the image after the last action.
            name: The dotted name of the field.
            max_side: The maximum height and width. By default the original size, and the stored bytes of an encoded
                image.

        Raises:
            InvalidArgumentError: If there is no such image.
        """
        rows, field = self._rows(number), self._field(name)
        last = len(rows) - (not field.shared)
        if not images.is_image(field) or not 0 <= step <= last:
            raise InvalidArgumentError(
                f"{name} has no image at step {step:,}, expected an image field, and 0 to {last:,}"
            )
        final = step == len(rows)
        if final and not self.has_final(field.name, number):
            raise InvalidArgumentError(f"the image of {name} after the last action of episode {number:,} is unknown")
        if max_side is None and (file := self._file(field, number if final else rows[step], final=final)):
            return file
        value = self._final(field, number) if final else self._values(field, rows[step], rows[step] + 1)[0]
        return images.encode(value, scale=self._scale(number, field.name), max_side=max_side)

    def _file(self, field: Field, index: int, *, final: bool) -> bytes:
        """Return the stored PNG or JPEG file of an image. Empty if the image is stored in another form."""
        items = self.stored.final_states(field.key) if final else self.stored.items(field.key)
        return items.read_file(index) if isinstance(items, ImageColumn) else b""

    def image_fields(self) -> list[str]:
        """Return the dotted names of the fields that are shown as images."""
        return [dotted_name(field.key) for field in self.stored.schema if images.is_image(field)]

    def curve_fields(self) -> list[str]:
        """Return the dotted names of the fields that are drawn as curves: reward, action, then all others."""
        drawn = [
            field
            for field in self.stored.schema
            if field.key != EPISODE and field.name not in _FLAGS and not field.text and not images.is_image(field)
        ]
        return [field.name for field in sorted(drawn, key=_rank)]


def _rank(field: Field) -> int:
    return {NEXT: 0, "action": 1, OBSERVATION[0]: 2}.get(field.key[0], 3)


def _rate(fps: Any) -> float | None:
    """Return the steps per second of a recording, or None if `fps` is not a number in (0, 200]."""
    known = isinstance(fps, (int, float)) and not isinstance(fps, bool) and 0 < fps <= _MAX_RATE
    return fps if known else None


def _end_text(terminated: bool) -> str:
    return "terminated" if terminated else "truncated"


def _summary(values: NDArray[Any]) -> dict[str, Any]:
    """Return statistics of a column of the list of episodes.

    A statistic that overflows is None. The result is empty if no value is finite.
    """
    finite = values[np.isfinite(values)]
    if not len(finite):
        return {}
    numbers = finite.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        statistics = np.array([numbers.min(), np.median(numbers), numbers.max(), numbers.mean(), numbers.std()])
    return dict(zip(("min", "median", "max", "mean", "std"), tidy(statistics), strict=True))
