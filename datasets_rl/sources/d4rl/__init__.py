"""D4RL: one HDF5 file per id, from the server of Berkeley's RAIL lab. ``catalog.json`` lists the ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.sources.base import Entry, Score, Source, SpaceSummary

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset

__all__ = ["D4RL", "SOURCE"]


class D4RL(Source):
    """Source whose catalog lists files in D4RL's layout."""

    name = "d4rl"
    endings = (".hdf5", ".h5")
    kind = "HDF5"
    arrays = ("observations", "actions", "rewards", "terminals")
    foreign_arrays = frozenset({"costs"})
    reader = "datasets_rl.sources.d4rl.reader:D4RLReader"

    @override
    def ids(self) -> Sequence[str]:
        return self._ids

    @override
    def entry(self, name: str) -> Entry:
        params = self.listed_facts(name)
        catalog = self.catalog
        family = catalog["families"][params["family"]]
        environment, quality = _environment_and_quality(family, name)
        policy = catalog.get("qualities", {}).get(quality)
        sizes = _state_and_action_sizes(family, name)
        return self.catalog_entry(
            name,
            title=family["title"] if policy is None else f"{family['title']}: {policy}",
            description=family["description"],
            environment=environment,
            observation=_observation_space(family, sizes),
            action=_action_space(family, sizes),
            **self.figures({"bytes": params.get("size"), **params.get("figures", {})}),
            tags=(*family["tags"], *filter(None, quality.split("-"))),
            known_issues=tuple(
                catalog["known_issues"][issue] for issue in (*family["known_issues"], *params.get("known_issues", ()))
            ),
            score=self._reference_score(params),
            time_limit=params["time_limit"],
            deprecated=params.get("deprecated", False),
            params={
                "family": params["family"],
                "continuing": family["continuing"],
                "path": params["path"],
                "sizes": sizes,
            },
        )

    @override
    def assets(self, name: str) -> Sequence[Asset]:
        params = self.listed_facts(name)
        # The path of the upstream, so that a copy of the upstream's files can serve as a mirror.
        path: str = params["path"]
        bases: Sequence[str] = self.catalog.get("flat_urls", ())  # mirrors without the upstream's folders
        flat = (base + path.rpartition("/")[2] for base in bases)
        asset = self.listed_file(path, "HDF5", size=params.get("size"), sha256=params.get("sha256"))
        return (replace(asset, urls=(*asset.urls, *flat)),)

    @cached_property
    def _ids(self) -> tuple[str, ...]:
        return tuple(sorted(self.catalog["ids"]))

    def _reference_score(self, params: Mapping[str, Any]) -> Score | None:
        if "score" not in params:
            return None
        low, high, origin = params["score"]
        return Score(low, high, self.catalog["score_origins"][origin])


def _state_and_action_sizes(family: Mapping[str, Any], name: str) -> Sequence[int] | None:
    """Return the sizes of an observation and an action; None if they are not known."""
    sizes_by_prefix: Mapping[str, Sequence[int]] = family.get("sizes", {})
    return next((sizes for prefix, sizes in sizes_by_prefix.items() if f"{name}-".startswith(f"{prefix}-")), None)


def _environment_and_quality(family: Mapping[str, Any], name: str) -> tuple[str, str]:
    """Return the environment, and the words between its name in the id and the version: ``medium-replay``.

    The words are empty if they do not say which policy took the steps: in ``antmaze-medium-play-v2`` the maze is medium.
    """
    environments: Mapping[str, str] = family["environments"]
    prefixes = [prefix for prefix in environments if f"{name}-".startswith(f"{prefix}-")]
    prefix = max(prefixes, key=len, default="")
    quality = name[len(prefix) :].strip("-").rpartition("-v")[0] if family.get("named_by_quality", True) else ""
    return environments.get(prefix, ""), quality


def _observation_space(family: Mapping[str, Any], sizes: Sequence[int] | None) -> SpaceSummary:
    if "pixels" in family:
        return SpaceSummary("pixels", tuple(family["pixels"]))
    shape = family.get("observations") if sizes is None else sizes[:1]
    return SpaceSummary("state", None if shape is None else tuple(shape))


def _action_space(family: Mapping[str, Any], sizes: Sequence[int] | None) -> SpaceSummary:
    shape = family.get("action_shape") if sizes is None else sizes[1:]
    low, high = family.get("bounds", (None, None))
    return SpaceSummary(family.get("actions", "continuous"), None if shape is None else tuple(shape), None, low, high)


SOURCE = D4RL()
