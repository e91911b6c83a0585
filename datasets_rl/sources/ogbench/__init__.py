"""OGBench: one npz file per dataset and another for validation, from the server of Berkeley's RAIL lab.

antmaze-large-navigate-v0                     antmaze-large-navigate-v0.npz
antmaze-large-navigate-v0-val                 antmaze-large-navigate-v0-val.npz
antmaze-large-navigate-singletask-task2-v0    the first file, with the rewards of a task
antmaze-large-navigate-oraclerep-v0           the first file, with OGBench's representations of goals
cube-octuple-play-100m-v0                     cube-octuple-play-100m-v0/cube-octuple-play-v0-000.npz to -099.npz
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.errors import FetchError
from datasets_rl.sources.base import (
    AT_ADDRESS,
    Entry,
    Listing,
    Selection,
    Shard,
    Source,
    SpaceSummary,
    by_images,
    quality_tags,
)
from datasets_rl.sources.selection import MIN_RATIO, Numbers
from datasets_rl.ted.keys import ACTION, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset
    from datasets_rl.fetch.upstream import Upstream

__all__ = ["SOURCE", "OGBench"]

_ID = re.compile(
    r"(?P<visual>visual-)?(?P<environment>[a-z]+(?:-[a-z0-9]+)??)-(?P<type>[a-z]+)(?P<large>-100m)?"
    r"(?:-(?P<singletask>singletask)(?:-task(?P<task>[1-5]))?|-(?P<oraclerep>oraclerep))?-v0(?P<split>-val)?",
    re.ASCII,
)
_PIXELS = (64, 64, 3)
_INFO = (("info", "qpos"), ("info", "qvel"))
_BUTTONS = ("info", "button_states")


@dataclass(frozen=True, slots=True)
class _Id:
    """The words of an id."""

    name: str
    environment: str
    """Name in the catalog, without "visual"."""
    facts: Mapping[str, Any]
    """What the catalog states about the environment."""
    type: str
    visual: bool
    large: bool
    task: int | None
    """Number of the task that gives the rewards, from 1; None for none."""
    oracle: bool
    split: str
    """"-val" or empty."""

    @property
    def pixels(self) -> bool:
        return self.visual or "pixels" in self.facts

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of files, of episodes in each, and of rows in each episode; a validation file has a tenth."""
        files, episodes, rows = (
            self.facts["large"][self.type] if self.large else (1, *self.facts["datasets"][self.type])
        )
        return files, episodes // 10 if self.split else episodes, rows

    @property
    def paths(self) -> list[str]:
        """The paths of the files at the upstream."""
        stem = f"{'visual-' if self.visual else ''}{self.environment}-{self.type}"
        if not self.large:
            return [f"{stem}-v0{self.split}.npz"]
        return [f"{stem}-100m-v0/{stem}-v0-{number:03}.npz" for number in range(self.counts[0])]


class OGBench(Source):
    """Source of the datasets of OGBench, with the rewards of its single tasks."""

    name = "ogbench"
    endings = (".npz",)
    kind = "npz"
    arrays = ("observations", "actions", "terminals")
    many_files = True
    foreign_arrays = frozenset({"rewards", "image"})
    reader = "datasets_rl.sources.ogbench.reader:OGBenchReader"
    image_forms = ("raw", "compressed")
    selects = frozenset({"episodes"})

    @override
    def ids(self) -> Sequence[str]:
        return self._ids

    @cached_property
    def _ids(self) -> tuple[str, ...]:
        return tuple(sorted(self._all_ids()))

    def _all_ids(self) -> Iterator[str]:
        """Yield every id: the datasets, their validation files, and each with the rewards of one of the five tasks."""
        for environment, facts in self.catalog["environments"].items():
            stems = [f"{environment}-{kind}" for kind in facts["datasets"]]
            stems += [f"visual-{stem}" for stem in stems if facts.get("visual")]
            large = [f"{environment}-{kind}-100m" for kind in facts.get("large", {})]
            yield from (f"{stem}-v0{split}" for stem in stems for split in ("", "-val"))
            yield from (f"{stem}-v0" for stem in large)
            if "tasks" in facts:
                yield from (
                    f"{stem}-singletask{task}-v0"
                    for stem in (*stems, *large)
                    for task in ("", *(f"-task{number}" for number in range(1, 6)))
                )

    @override
    def entry(self, name: str) -> Entry:
        parts = self._parts(name)
        catalog, facts = self.catalog, parts.facts
        files, episodes, rows = parts.counts
        group = next((word for word in ("maze", "soccer", "powderworld") if word in parts.environment), "arm")
        words = [facts["title"], catalog["types"][parts.type]]
        words += ["seen by a camera"] * parts.visual + ["the validation file"] * bool(parts.split)
        words += [] if parts.task is None else [f"rewards of task {parts.task}"]
        issues = catalog["known_issues"]
        problems = [issues["reward"]] if parts.task is not None else []
        problems += [issues["4x4"]] if (parts.environment, parts.task) == ("puzzle-4x4", 1) else []
        return self.catalog_entry(
            name,
            title=", ".join(words),
            description=catalog["descriptions"][group],
            environment=_environment(parts),
            observation=SpaceSummary("pixels", _PIXELS if parts.visual else tuple(facts["observation"]))
            if parts.pixels
            else SpaceSummary("state", tuple(facts["observation"])),
            action=SpaceSummary("discrete", (1,))
            if facts["action"] is None
            else SpaceSummary("continuous", tuple(facts["action"]), None, -1, 1),
            **self.figures(
                {
                    "bytes": [int(files * episodes * rows * _file_bytes(parts)), "assumed"],
                    "steps": [files * episodes * (rows - 1), "nominal"],
                    "episodes": [files * episodes, "nominal"],
                }
            ),
            tags=(*_tags(parts, group), *quality_tags(parts.type)),
            known_issues=tuple(problems),
        )

    @override
    def assets(self, name: str) -> Sequence[Asset]:
        return [self.listed_file(path, "npz") for path in self._parts(name).paths]

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Make every file a shard; see `Source.resolve`."""
        parts = self._parts(name)
        assets = self.assets(name)
        assets = self._listed_assets(assets, upstream) if parts.large else [upstream.with_size(one) for one in assets]
        return replace(
            self.listing(assets, selection),
            keys=_keys(parts),
            stored_bytes={} if selection.episodes else self._stored_bytes(parts, selection),
        )

    @override
    def reader_facts(self, name: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        if AT_ADDRESS in params:
            return params
        parts = self._parts(name)
        return {"tasks": parts.facts.get("tasks"), "task": parts.task, "oracle": parts.oracle}

    def _listed_assets(self, assets: Sequence[Asset], upstream: Upstream) -> Sequence[Asset]:
        """Return the files of a folder as its address lists them; by their names in the catalog if none does."""
        folder = assets[0].path.rpartition("/")[0]
        try:
            listed = upstream.folder(folder, [base + folder for base in self.catalog["base_urls"]]).assets
        except FetchError:  # neither a local folder nor an address that lists files
            return assets
        found = sorted((asset for asset in listed if asset.path.endswith(".npz")), key=lambda asset: asset.path)
        return [asset.of_kind("npz") for asset in found if "-val" not in asset.path] or assets

    @override
    def listing(self, assets: Sequence[Asset], selection: Selection) -> Listing:
        chosen = [asset for asset in assets if selection.keeps_file(asset.path)] or assets
        numbers = {asset.path: number for number, asset in enumerate(assets)}
        return Listing(
            tuple(chosen),
            tuple(Shard((asset.path,), [[asset.path, numbers[asset.path]]]) for asset in chosen),
            common=(chosen[0].path,),  # its arrays define the columns
            numbers=Numbers.read(selection.episodes),
        )

    def _parts(self, name: str) -> _Id:
        """Return the words of an id.

        Raises:
            UnknownIdError: If the catalog has no such dataset, or its environment has no such task.
        """
        match = _ID.fullmatch(name)
        facts = None if match is None else self.catalog["environments"].get(match["environment"])
        if match is None or facts is None:
            raise self.unknown(name)
        is_task, is_oracle, is_large = (match[word] is not None for word in ("singletask", "oraclerep", "large"))
        is_absent = match["type"] not in facts.get("large" if is_large else "datasets", {})
        is_absent |= match["visual"] is not None and (is_large or "visual" not in facts)
        if is_absent or ((is_task or is_oracle) and "tasks" not in facts) or (is_large and match["split"]):
            raise self.unknown(name)
        task = int(match["task"] or facts["tasks"]["default"]) if is_task else None
        return _Id(
            name,
            match["environment"],
            facts,
            match["type"],
            match["visual"] is not None,
            is_large,
            task,
            is_oracle,
            match["split"] or "",
        )

    @staticmethod
    def _stored_bytes(parts: _Id, selection: Selection) -> dict[str, float]:
        files, episodes, rows = parts.counts
        kept = selection.kept_keys(_keys(parts))
        steps = files * episodes * (rows - 1)
        others = steps * (4.0 * prod(parts.facts["action"] or (1,)) + 16 + _state_bytes(parts) * (_INFO[0] in kept))
        observations = steps * float(prod(_PIXELS if parts.visual else parts.facts["observation"]))
        observations *= OBSERVATION in kept
        if not parts.pixels:
            return {"": others + 4 * observations}
        return by_images({"compressed": observations / MIN_RATIO + others, "raw": observations + others}, selection)


def _state_bytes(parts: _Id) -> int:
    """Return the bytes of the simulator's state in a row: the joints, their velocities and the buttons."""
    tasks = parts.facts.get("tasks", {"qpos": 0})
    return 8 * int(tasks["qpos"]) + 8 * int(tasks.get("buttons", 0))


def _file_bytes(parts: _Id) -> float:
    """Return the estimated bytes of a row in the file."""
    others = 0.9 * (4 * prod(parts.facts["action"] or (1,)) + _state_bytes(parts))
    observation = prod(_PIXELS if parts.visual else parts.facts["observation"])
    return others + (observation / 5 if parts.pixels else 3.6 * observation)


def _environment(parts: _Id) -> str:
    """Return the id of the environment in the package ``ogbench``."""
    task = "" if parts.task is None else f"-singletask-task{parts.task}"
    return f"{'visual-' if parts.visual else ''}{parts.environment}{task}-v0"


def _tags(parts: _Id, group: str) -> Iterator[str]:
    yield from ("goal-conditioned", "single-task")[parts.task is not None :][:1]
    yield {"maze": "locomotion", "soccer": "locomotion", "arm": "manipulation"}.get(group, "drawing")
    yield parts.type
    if parts.split:
        yield "validation"


def _keys(parts: _Id) -> list[tuple[str, ...]]:
    """Return the fields of the steps."""
    keys = [OBSERVATION, ACTION, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED]
    if "tasks" not in parts.facts:
        return keys
    keys += _INFO
    keys += [_BUTTONS] if parts.facts["tasks"].get("buttons") else []
    keys += [("next", "mask")] if parts.task is not None else []
    keys += [("info", "oracle_reps")] if parts.oracle else []
    return keys


SOURCE = OGBench()
