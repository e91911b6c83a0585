"""Atari DQN Replay: what a DQN agent saw in 60 games, 5 runs each, some 50 million steps a run.

    dqn/<Game>/<run>/replay_logs/$store$_observation_ckpt.<n>.gz     the agent's replay buffer, logged when it was full
                                 $store$_action_ckpt.<n>.gz, ... reward, terminal
                                 add_count_ckpt.<n>.gz, invalid_range_ckpt.<n>.gz

The bucket refuses everyone since 2025. RL Unplugged has the same runs of 46 games as episodes, in TFRecords:

    rlu_atari_checkpoints_ordered/<Game>_run_<run>/<version>/features.json
                                                             rlu_atari_checkpoints_ordered-checkpoint_<n>.tfrecord-...
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets_rl.errors import ConversionError, FetchError, InvalidArgumentError, OfflineError
from datasets_rl.sources.base import Entry, EpisodeReader, Listing, Selection, Shard, Source
from datasets_rl.sources.selection import Option, read_numbers
from datasets_rl.ted.keys import PLAIN

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset, Folder
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.ted.table import EpisodeTable

__all__ = ["SOURCE", "AtariDQN"]

_DQN, _RLU = "dqn", "rlu"
_LOG = re.compile(r"(?:\$store\$_(observation|action|reward|terminal)|(add_count|invalid_range))_ckpt\.(\d{1,4})\.gz")
_FIELDS = ("observation", "action", "reward", "terminal", "add_count", "invalid_range")
_AROUND = ("action", "reward", "terminal", "add_count")
"""What the ends of a checkpoint depend on of the ones around it."""
_RECORDS = re.compile(r".*rlu_atari\w*-(?:checkpoint_(\d{1,4})|train)\.tfrecord-(\d+)-of-(\d+)")
"""Where episodes are not sorted by checkpoints, all are one."""
_PLAIN = re.compile(r"(replay_logs|\d+\.\d+\.\d+)?")
"""What may lie between the folder that was asked for and the files: nothing that could be the number of a run."""
_GZIP = b"\x1f\x8b"
_GROWTH = {_DQN: 25.0, _RLU: 8.0}
"""A guess, for the estimate of --dry-run: bytes of frames for each byte of a log, and of a PNG among others."""


class AtariDQN(Source):
    """The runs of a catalog of games, from either upstream."""

    name = "atari_dqn"
    restated = frozenset({"citation", "known_issues"})
    options = (
        Option("upstream", "The logs of the agent, or the episodes of RL Unplugged", _DQN, choices=(_DQN, _RLU)),
        Option("checkpoints", "These only, of the 50 or so of a run, as in 0:5", numbers=True),
    )

    def ids(self) -> Sequence[str]:
        """Return the ids of all runs of all games, sorted; no network."""
        return sorted(f"{game}/{run}" for game in self.catalog["games"] for run in self.catalog["runs"])

    def entry(self, name: str) -> Entry:
        """Return what is known of a run; no network."""
        game, _, run = name.partition("/")
        catalog = self.catalog
        if game not in catalog["games"] or run not in map(str, catalog["runs"]):
            raise self.unknown(name)
        return Entry(
            source=self.name,
            name=name,
            title=f"Atari {game}: what a DQN agent saw in 50 million steps, run {run} of 5",
            license=catalog["license"],
            citation=catalog["citation"],
            homepage=catalog["homepage"],
            known_issues=tuple(catalog["known_issues"]),
            time_limit=catalog["time_limit"],
            params={"rlu": game in catalog["rlu_games"]},
        )

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """List the checkpoints of a run: each is a shard."""
        entry = self.entry(name)
        if selection.options.get("upstream") == _RLU:
            return self._episodes(entry, selection, upstream)
        path = f"dqn/{name}/replay_logs"
        try:
            folder = upstream.folder(path, [f"{self.catalog['bucket']}/{path}"])
        except OfflineError:
            raise
        except FetchError as error:
            raise FetchError(error.what, error.failures, hint=_closed(entry)) from error
        return _logs(entry, folder, path, selection)

    def _episodes(self, entry: Entry, selection: Selection, upstream: Upstream) -> Listing:
        if not entry.params["rlu"]:
            raise InvalidArgumentError(
                f"RL Unplugged has no {entry.name}; it has {len(self.catalog['rlu_games'])} of the 60 games",
                hint=f"leave out --upstream {_RLU}",
            )
        path = f"rlu_atari_checkpoints_ordered/{entry.name.replace('/', '_run_')}"
        folder = upstream.folder(path, [f"{self.catalog['rlu_bucket']}/{path}"])
        catalog = self.catalog
        entry = replace(entry, known_issues=tuple(catalog["rlu_known_issues"]), citation=catalog["rlu_citation"])
        return _records(entry, folder, path, selection)

    def open(self, name: str, files: Mapping[str, Path], params: Mapping[str, Any] | None = None) -> EpisodeReader:
        """Open the files of a checkpoint."""
        what, known = f"{self.name}/{name}", params or {}
        if known.get("upstream") == _RLU:
            from datasets_rl.sources.atari_dqn.episode_reader import RecordReader

            return RecordReader(what, files, known)
        from datasets_rl.sources.atari_dqn.log_reader import LogReader

        return LogReader(what, _by_checkpoint(files), known)

    def compare(
        self, name: str, files: Mapping[str, Path], column: Any, episodes: EpisodeTable | None = None
    ) -> list[str]:
        """Compare a converted run with its raw files, row by row."""
        del name
        from datasets_rl.sources.atari_dqn.compare import compare_episodes, compare_logs

        if episodes is None:
            return []
        if any(_RECORDS.fullmatch(path) for path in files):
            return compare_episodes(files, column, episodes)
        return compare_logs(_by_checkpoint(files), column, episodes)


def _closed(entry: Entry) -> str:
    more = f", or take the run from RL Unplugged with --upstream {_RLU}" if entry.params["rlu"] else ""
    return (
        "the bucket has refused every reader since 2025: give the files with --from-local PATH, or a copy of the "
        f"bucket with --mirror URL{more}"
    )


def _by_checkpoint(files: Mapping[str, Path]) -> dict[int, dict[str, Path]]:
    """Return where the files lie, by checkpoint and by what they hold."""
    found: dict[int, dict[str, Path]] = {}
    for path, place in files.items():
        if (log := _LOG.fullmatch(path.rpartition("/")[2])) is not None:
            found.setdefault(int(log[3]), {})[log[1] or log[2]] = Path(place)
    return found


def _logs(entry: Entry, folder: Folder, path: str, selection: Selection) -> Listing:
    found: dict[int, dict[str, Asset]] = {}
    for asset in _own(entry, folder, path, _LOG):
        log = _LOG.fullmatch(asset.path.rpartition("/")[2])
        if log is not None:
            found.setdefault(int(log[3]), {})[log[1] or log[2]] = replace(asset, magic=_GZIP, kind="gzip")
    chosen = _chosen(selection, found)
    lacking = [
        f"checkpoint {number} has no {field}" for number in chosen for field in _FIELDS if field not in found[number]
    ]
    if lacking:
        raise ConversionError(entry.id, lacking)
    frames = _wants_frames(selection)
    fields = _FIELDS if frames else _FIELDS[1:]

    def paths(number: int, fields: Sequence[str]) -> tuple[str, ...]:
        return tuple(found[number][field].path for field in fields)

    # What sizes and globs leave out must be known here: the last checkpoint that is read ends what is open.
    assets = tuple(found[number][field] for number in chosen for field in fields)
    alone = Listing(assets, tuple(Shard(paths(number, fields), number) for number in chosen)).narrowed(selection)
    kept = [shard.part for shard in alone.shards]
    shards = []
    for number in kept:
        before, after = number - 1 in kept, number + 1 in kept
        around = [path for one in (number - 1, number + 1) if one in kept for path in paths(one, _AROUND)]
        part = {"checkpoint": number, "before": before, "after": after, "last": number == max(found)}
        shards.append(Shard((*paths(number, fields), *around), part))
    params = {"upstream": _DQN, "frames": frames}
    growth = {"": _GROWTH[_DQN]} if frames else {}
    return replace(
        alone, shards=tuple(shards), params=params, keys=PLAIN, growth=growth, entry=entry, revision=folder.revision
    )


def _records(entry: Entry, folder: Folder, path: str, selection: Selection) -> Listing:
    inside = _own(entry, folder, path, _RECORDS)
    beside = f"{inside[0].path.rpartition('/')[0]}/features.json"
    schema = next((asset for asset in folder.assets if asset.path == beside), None)
    if schema is None:
        raise ConversionError(entry.id, [f"there is no features.json beside {inside[0].path}"])
    found: dict[int, list[Asset]] = {}
    for asset in inside:
        if (records := _RECORDS.fullmatch(asset.path)) is not None:
            found.setdefault(int(records[1] or 0), []).append(asset)
    chosen = _chosen(selection, found)
    faults = []
    for number in chosen:
        of = {asset.path.rpartition("-of-")[2] for asset in found[number]}
        if {len(found[number])} != {int(one) for one in of}:
            faults.append(
                f"checkpoint {number} has {len(found[number])} files; their names say {' and '.join(sorted(of))}"
            )
    if faults:
        raise ConversionError(entry.id, faults)
    return Listing(
        (schema, *(asset for number in chosen for asset in found[number])),
        tuple(Shard((asset.path,), number) for number in chosen for asset in found[number]),
        common=(schema.path,),
        params={"upstream": _RLU, "frames": _wants_frames(selection)},
        keys=PLAIN,
        growth={"": _GROWTH[_RLU]} if _wants_frames(selection) else {},
        entry=entry,
        revision=folder.revision,
    )


def _own(entry: Entry, folder: Folder, path: str, kind: re.Pattern[str]) -> list[Asset]:
    """Return the files of this kind in the folder of this run; a folder of the user's may hold several runs.

    Of several versions, the newest is taken.
    """
    inside: dict[str, list[Asset]] = {}
    for asset in folder.assets:
        above, _, name = asset.path.rpartition("/")
        if kind.fullmatch(name):
            inside.setdefault(above[len(path) + 1 :], []).append(asset)
    run = re.compile(rf"(.*/)?{entry.name.replace('/', '(/|_run_)')}(/.*)?")
    mine = [above for above in inside if _PLAIN.fullmatch(above) or run.fullmatch(above)]
    if not mine:
        shown = ", ".join(asset.path for asset in folder.assets[:3])
        raise ConversionError(entry.id, [f"no file below {folder.address} is of this run; the first ones are {shown}"])
    return inside[max(mine, key=lambda above: [int(one) for one in re.findall(r"\d+", above.rpartition("/")[2])])]


def _wants_frames(selection: Selection) -> bool:
    return not selection.keys or "observation" in selection.keys


def _chosen(selection: Selection, found: Mapping[int, Any]) -> list[int]:
    text = selection.options.get("checkpoints", "")
    if not text:
        return sorted(found)
    numbers = read_numbers(text, max(found) + 1, "checkpoints")
    if lacking := [number for number in numbers if number not in found]:
        raise InvalidArgumentError(
            f"checkpoints are {text!r}; there is no {lacking[0]}, but {', '.join(map(str, sorted(found)))}"
        )
    return numbers


SOURCE = AtariDQN()
