"""Atari DQN Replay: the experience of a DQN agent in 60 games, 5 runs each, about 50 million steps per run.

    dqn/<Game>/<run>/replay_logs/$store$_observation_ckpt.<n>.gz     the agent's replay buffer, logged when full
                                 $store$_action_ckpt.<n>.gz, ... reward, terminal
                                 add_count_ckpt.<n>.gz, invalid_range_ckpt.<n>.gz

Since 2025 the bucket denies access to everyone. RL Unplugged has the same runs of 46 games as episodes, in TFRecords:

    rlu_atari_checkpoints_ordered/<Game>_run_<run>/<version>/features.json
                                                             rlu_atari_checkpoints_ordered-checkpoint_<n>.tfrecord-...
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.errors import Argument, Call, ConversionError, FetchError, InvalidArgumentError, OfflineError, Remedy
from datasets_rl.read.streams import refuse
from datasets_rl.sources.base import Entry, EpisodeReader, Listing, Selection, Shard, Source, by_images
from datasets_rl.sources.selection import MAX_EPISODES, Option, read_numbers
from datasets_rl.ted.keys import PLAIN

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset, Folder
    from datasets_rl.fetch.upstream import Upstream

__all__ = ["SOURCE", "AtariDQN"]

_DQN, _RLU = "dqn", "rlu"
_LOG = re.compile(r"(?:\$store\$_(observation|action|reward|terminal)|(add_count|invalid_range))_ckpt\.(\d{1,4})\.gz")
_FIELDS = ("observation", "action", "reward", "terminal", "add_count", "invalid_range")
_NEIGHBOR_FIELDS = ("action", "reward", "terminal", "add_count")
"""Fields of the adjacent checkpoints that determine the first and last rows of a checkpoint."""
_RECORDS = re.compile(r".*rlu_atari\w*-(?:checkpoint_(\d{1,4})|train)\.tfrecord-(\d+)-of-(\d+)")
"""Files of episodes. Files that are not sorted by checkpoint form a single checkpoint."""
_PLAIN = re.compile(r"(replay_logs|\d+\.\d+\.\d+)?")
"""Folders allowed between the listed folder and the files: a folder with the number of a run as its name is not allowed."""
_UPSTREAM = Argument("selection", Call("Selection", options={"upstream": _RLU}))
_GZIP = b"\x1f\x8b"
_GROWTH = {_DQN: {"compressed": 1.5, "raw": 25.0}, _RLU: {"compressed": 0.5, "raw": 8.0}}
"""Assumed number of stored bytes per fetched byte, of a log and of records with PNG images, to estimate sizes. Of frames
of ten games, compressed frames have 1.35 times the bytes of a log."""


class AtariDQN(Source):
    """Source of the runs of all games in the catalog, from either upstream."""

    name = "atari_dqn"
    image_forms = ("raw", "compressed")
    restated = frozenset({"citation", "known_issues"})
    options = (
        Option("upstream", "The logs of the agent, or the episodes of RL Unplugged", _DQN, choices=(_DQN, _RLU)),
        Option("checkpoints", "Only these of the about 50 checkpoints of a run, as in 0:5", numbers=True),
    )

    @override
    def addresses(self, name: str) -> Sequence[str]:
        return (f"{self.catalog['bucket']}/dqn/{name}/replay_logs",)

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """List the checkpoints of a run, each of which is a shard, see `Source.resolve`."""
        entry = self.entry(name)
        if selection.options.get("upstream") == _RLU:
            return self._select_episodes(entry, selection, upstream)
        path = f"dqn/{name}/replay_logs"
        try:
            folder = upstream.folder(path, [f"{self.catalog['bucket']}/{path}"])
        except OfflineError:
            raise
        except FetchError as error:
            raise FetchError(error.name, error.failures, hint=_access_remedy(entry)) from error
        return _list_logs(entry, folder, path, selection)

    def _select_episodes(self, entry: Entry, selection: Selection, upstream: Upstream) -> Listing:
        if not entry.params["rlu"]:
            count = sum(group["rlu"] for group in self.catalog["groups"].values())
            raise InvalidArgumentError(
                f"RL Unplugged has no {entry.name}, only {count} of the 60 games",
                hint=Remedy("omit {}", _UPSTREAM),
            )
        path = f"rlu_atari_checkpoints_ordered/{entry.name.replace('/', '_run_')}"
        folder = upstream.folder(path, [f"{self.catalog['rlu_bucket']}/{path}"])
        catalog = self.catalog
        entry = replace(entry, known_issues=tuple(catalog["rlu_known_issues"]), citation=catalog["rlu_citation"])
        return _list_records(entry, folder, path, selection)

    @override
    def open(
        self, name: str, files: Mapping[str, Path], params: Mapping[str, Any] | None = None, *, dataset_id: str = ""
    ) -> EpisodeReader:
        what, params = dataset_id or f"{self.name}/{name}", params or {}
        if params.get("upstream") == _RLU:
            from datasets_rl.sources.atari_dqn.episode_reader import RecordReader

            return RecordReader(what, files, params)
        from datasets_rl.sources.atari_dqn.log_reader import LogReader

        return LogReader(what, _files_by_checkpoint(files), params)


def _access_remedy(entry: Entry) -> Remedy:
    return Remedy(
        "since 2025 the bucket denies access to everyone: give the files with {}, or a copy of the bucket with {}{}",
        Argument("from_local"),
        Argument("mirrors"),
        Remedy(", or take the run from RL Unplugged with {}", _UPSTREAM) if entry.params["rlu"] else "",
    )


def _files_by_checkpoint(files: Mapping[str, Path]) -> dict[int, dict[str, Path]]:
    """Return the local files by checkpoint and field."""
    logs: dict[int, dict[str, Path]] = {}
    for path, file in files.items():
        if (log := _LOG.fullmatch(path.rpartition("/")[2])) is not None:
            logs.setdefault(int(log[3]), {})[log[1] or log[2]] = Path(file)
    return logs


def _list_logs(entry: Entry, folder: Folder, path: str, selection: Selection) -> Listing:
    logs: dict[int, dict[str, Asset]] = {}
    for asset in _files_of_run(entry, folder, path, _LOG):
        log = _LOG.fullmatch(asset.path.rpartition("/")[2])
        if log is not None:
            logs.setdefault(int(log[3]), {})[log[1] or log[2]] = replace(asset, magic=_GZIP, kind="gzip")
    chosen = _selected_checkpoints(selection, logs)
    missing = [
        f"checkpoint {number} has no {field}" for number in chosen for field in _FIELDS if field not in logs[number]
    ]
    if missing:
        raise ConversionError(entry.id, missing)
    frames = _wants_frames(selection)
    fields = _FIELDS if frames else _FIELDS[1:]

    def paths(number: int, fields: Sequence[str]) -> tuple[str, ...]:
        return tuple(logs[number][field].path for field in fields)

    # Sizes and globs must be applied here, because the last checkpoint that is read ends the unfinished episode.
    assets = tuple(logs[number][field] for number in chosen for field in fields)
    alone = Listing(assets, tuple(Shard(paths(number, fields), number) for number in chosen)).narrow_to(selection)
    kept = [shard.part for shard in alone.shards]
    shards = []
    for number in kept:
        before, after = number - 1 in kept, number + 1 in kept
        neighbors = [
            path
            for neighbor in (number - 1, number + 1)
            if neighbor in kept
            for path in paths(neighbor, _NEIGHBOR_FIELDS)
        ]
        part = {"checkpoint": number, "before": before, "after": after, "last": number == max(logs)}
        shards.append(Shard((*paths(number, fields), *neighbors), part))
    params = {"upstream": _DQN, "frames": frames}
    growth = by_images(_GROWTH[_DQN], selection) if frames else {}
    return replace(
        alone, shards=tuple(shards), params=params, keys=PLAIN, growth=growth, entry=entry, revision=folder.revision
    )


def _list_records(entry: Entry, folder: Folder, path: str, selection: Selection) -> Listing:
    inside = _files_of_run(entry, folder, path, _RECORDS)
    schema_path = f"{inside[0].path.rpartition('/')[0]}/features.json"
    schema = next((asset for asset in folder.assets if asset.path == schema_path), None)
    if schema is None:
        raise ConversionError(entry.id, [f"the folder of {inside[0].path} has no features.json"])
    by_checkpoint: dict[int, list[Asset]] = {}
    for asset in inside:
        if (records := _RECORDS.fullmatch(asset.path)) is not None:
            by_checkpoint.setdefault(int(records[1] or 0), []).append(asset)
    chosen = _selected_checkpoints(selection, by_checkpoint)
    problems = []
    for number in chosen:
        assets = by_checkpoint[number]
        counts = {asset.path.rpartition("-of-")[2] for asset in assets}
        if {len(assets)} != {int(count) for count in counts}:
            problems.append(
                f"checkpoint {number} has {len(assets)} files, but the names state {' and '.join(sorted(counts))}"
            )
    refuse(entry.id, problems)
    return Listing(
        (schema, *(asset for number in chosen for asset in by_checkpoint[number])),
        tuple(Shard((asset.path,), number) for number in chosen for asset in by_checkpoint[number]),
        common=(schema.path,),
        params={"upstream": _RLU, "frames": _wants_frames(selection)},
        keys=PLAIN,
        growth=by_images(_GROWTH[_RLU], selection) if _wants_frames(selection) else {},
        entry=entry,
        revision=folder.revision,
    )


def _files_of_run(entry: Entry, folder: Folder, path: str, kind: re.Pattern[str]) -> list[Asset]:
    """Return the files of a run with names that match a pattern, of the newest version.

    A local folder of the user may contain several runs.
    """
    inside: dict[str, list[Asset]] = {}
    for asset in folder.assets:
        parent, _, name = asset.path.rpartition("/")
        if kind.fullmatch(name):
            inside.setdefault(parent[len(path) + 1 :], []).append(asset)
    run = re.compile(rf"(.*/)?{entry.name.replace('/', '(/|_run_)')}(/.*)?")
    parents = [parent for parent in inside if _PLAIN.fullmatch(parent) or run.fullmatch(parent)]
    if not parents:
        examples = ", ".join(asset.path for asset in folder.assets[:3])
        raise ConversionError(
            entry.id, [f"no file below {folder.address} belongs to this run. The first files are {examples}"]
        )
    return inside[max(parents, key=lambda parent: [int(n) for n in re.findall(r"\d+", parent.rpartition("/")[2])])]


def _wants_frames(selection: Selection) -> bool:
    return not selection.keys or "observation" in selection.keys


def _selected_checkpoints(selection: Selection, by_checkpoint: Mapping[int, Any]) -> list[int]:
    text = selection.options.get("checkpoints", "")
    if not text:
        return sorted(by_checkpoint)
    if (last := max(by_checkpoint)) >= MAX_EPISODES:
        raise ConversionError(
            "atari_dqn", [f"a file has the number of a checkpoint {last}, expected less than {MAX_EPISODES:,}"]
        )
    numbers = read_numbers(text, last + 1, "checkpoints")
    if missing := [number for number in numbers if number not in by_checkpoint]:
        raise InvalidArgumentError(
            f"checkpoints are {text!r}, but checkpoint {missing[0]} does not exist, "
            f"expected some of {', '.join(map(str, sorted(by_checkpoint)))}"
        )
    return numbers


SOURCE = AtariDQN()
