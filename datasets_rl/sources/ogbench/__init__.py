"""OGBench: an npz file per dataset and another file for validation, from the server of Berkeley's RAIL lab.

antmaze-large-navigate-v0                     antmaze-large-navigate-v0.npz
antmaze-large-navigate-v0-val                 antmaze-large-navigate-v0-val.npz
antmaze-large-navigate-singletask-task2-v0    the first file, with the rewards of a task
antmaze-large-navigate-oraclerep-v0           the first file, with OGBench's representations of goals
cube-octuple-play-100m-v0                     cube-octuple-play-100m-v0/cube-octuple-play-v0-000.npz to -099.npz
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.errors import FetchError
from datasets_rl.sources.base import AT_ADDRESS, Listing, Selection, Shard, Source, by_images
from datasets_rl.sources.selection import MIN_RATIO, Numbers
from datasets_rl.ted.keys import NEXT_MASK, OBSERVATION, PLAIN, Key

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.sources.address_files import AddressFiles

__all__ = ["SOURCE", "OGBench"]

_UNLISTED = re.compile(r"(.+)-(?:oraclerep|(singletask(?:-task[1-5])?))-v0(-val)?", re.ASCII)
_IMAGE_AXES = 4
_QPOS: Key = ("info", "qpos")


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
    def recognize(self, files: AddressFiles) -> str:
        evidence = super().recognize(files)
        if not evidence:
            return ""
        # Files of users may have the three arrays too, and their last actions are steps.
        arrays = files.arrays(files.ending(*self.endings)[0])
        return evidence if "qpos" in arrays or len(arrays["observations"]) == _IMAGE_AXES else ""

    @override
    def listed_facts(self, name: str) -> dict[str, Any]:
        """Return the facts of an id.

        The catalog does not list datasets with the representations of goals, and validation files with the rewards of a
        task.
        """
        ids, match = self.catalog["ids"], _UNLISTED.fullmatch(name)
        if match is None or name in ids:
            return super().listed_facts(name)
        stem, task, split = match.groups("")
        dataset = ids.get(f"{stem}-v0{split}")
        stated = ids.get(f"{stem}-{task}-v0") if task else dataset
        if dataset is None or stated is None or dataset["in"][0] != "goal" or "tasks" not in self.merged("", dataset):
            raise self.unknown(name)
        group = "val" if task else "oraclerep"
        return {**stated, **dataset, "in": [*stated["in"], group]}

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Make every file a shard, see `Source.resolve`."""
        facts, assets = self.facts(name), self.assets(name)
        assets = self._listed_assets(assets, upstream) if len(assets) > 1 else [upstream.with_size(assets[0])]
        return replace(
            self.listing(assets, selection),
            keys=_keys(facts),
            stored_bytes={} if selection.episodes else _stored_bytes(facts, selection),
        )

    @override
    def reader_facts(self, name: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return params if AT_ADDRESS in params else self.facts(name)

    def _listed_assets(self, assets: Sequence[Asset], upstream: Upstream) -> Sequence[Asset]:
        """Return the files of a folder as its address lists them, or else as the catalog names them."""
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
            common=(chosen[0].path,),  # the arrays of this file define the columns
            numbers=Numbers.read(selection.episodes),
        )


def _keys(facts: Mapping[str, Any]) -> list[Key]:
    """Return the fields of the steps."""
    keys: list[Key] = [*PLAIN]
    if "tasks" in facts:
        keys += [_QPOS, ("info", "qvel")]
        keys += [("info", "button_states")] if facts["tasks"].get("buttons") else []
        keys += [NEXT_MASK] if "task" in facts else []
        keys += [("info", "oracle_reps")] if "oracle" in facts else []
    return keys


def _stored_bytes(facts: Mapping[str, Any], selection: Selection) -> dict[str, float]:
    steps, kept, tasks = facts["steps"][0], selection.kept_keys(_keys(facts)), facts.get("tasks", {"qpos": 0})
    state = 8 * (tasks["qpos"] + tasks.get("buttons", 0)) * (_QPOS in kept)
    others = steps * (4.0 * prod(facts["action"]["shape"]) + 16 + state)
    observations = float(steps * prod(facts["observation"]["shape"]) * (OBSERVATION in kept))
    if facts["observation"]["kind"] == "state":
        return {"": others + 4 * observations}
    return by_images({"compressed": observations / MIN_RATIO + others, "raw": observations + others}, selection)


SOURCE = OGBench()
