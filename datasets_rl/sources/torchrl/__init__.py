"""Folders that TorchRL and tensordict write: saved TensorDicts, dumped replay buffers, and TorchRL's own datasets.

    TensorDict.memmap(folder)                 meta.json, action.memmap, next/meta.json, ...
    ReplayBuffer.dumps(folder)                storage/meta.json, ..., storage/storage_metadata.json, writer/metadata.json
    ~/.cache/torchrl/minari/<id>              meta.json, ..., env_metadata.json

The id is any name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from typing_extensions import override

from datasets_rl.errors import Argument, Call, ConversionError, Remedy, join_names
from datasets_rl.sources.base import Entry, Listing, Selection, Shard, group_by_size, none_kept
from datasets_rl.sources.own_folders import OwnFolders
from datasets_rl.sources.selection import Numbers, Option
from datasets_rl.ted.keys import natural_order

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Folder
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.sources.address_files import AddressFiles

__all__ = ["SOURCE", "TorchRL"]

_META, _ENDING = "meta.json", ".memmap"
_STORAGE, _WRITER = "storage", "writer"
_STATES = (_WRITER, "sampler", "rng_state")
"""Folders of the state of a buffer beside the storage."""
_DOCUMENTS = frozenset({_META, "storage_metadata.json"})
_NUMBERS = re.compile(r"\d+")
_SHARD_BYTES = 64 << 20


class TorchRL(OwnFolders):
    """Source of the folders of TorchRL and tensordict: any name for a folder of the user."""

    name = "torchrl"
    reader = "datasets_rl.sources.torchrl.reader:TorchRLReader"
    selects = frozenset({"episodes"})
    image_forms = ("raw", "compressed")
    options = (
        Option(
            "order",
            "Order of the rows: of time, as in the file, or none, where an episode ends in each row whose next state is not the "
            "state of the following row. By default, the cursor of the buffer shows the order.",
            choices=("file", "none"),
        ),
        Option(
            "rows",
            "Steps of a folder without a length, with rows of zeros at the end: the rows before these, or all rows.",
            choices=("filled", "all"),
        ),
        Option(
            "next",
            "State after a step of a folder without states in next: the state of the following row, and unknown at the end of "
            "an episode.",
            choices=("following",),
        ),
        Option(
            "finals",
            "Zeros, or the first state of the following episode, after the last step of an episode: stored as the state, or "
            "unknown.",
            choices=("unknown", "stored"),
        ),
        Option(
            "time",
            "Dimension of the batch that counts the steps. By default, the values show it.",
            choices=("0", "1", "2"),
        ),
    )

    @property
    @override
    def wanted(self) -> Remedy:
        return Remedy("give the folder that TorchRL has written: {}", Argument("from_local"))

    @override
    def recognize(self, files: AddressFiles) -> str:
        roots = _roots(files.paths)
        if not roots:
            return ""
        first = next(iter(roots))
        more = f" ({len(roots):,} such folders)" if len(roots) > 1 else ""
        return f"{_joined(first, _META)} describes the {_ENDING} files beside it{more}"

    @override
    def resolve_files(self, entry: Entry, folder: Folder, selection: Selection, upstream: Upstream) -> Listing:
        assets = {asset.path.removeprefix(f"{entry.name}/"): asset for asset in folder.assets}
        roots = _roots(assets)
        if not roots:
            names = ", ".join(sorted(assets)[:5]) or "none"
            raise ConversionError(entry.id, [f"it has no {_META} beside {_ENDING} files. The first files are {names}"])
        if len({_NUMBERS.sub("", root) for root in roots}) > 1 and not (selection.include or selection.exclude):
            problem = f"it has several folders of steps, whose names are not numbered: {join_names([*roots])}"
            hint = Remedy(
                "give one of the folders, or choose with {}", Argument("selection", Call("Selection", include=...))
            )
            raise ConversionError(entry.id, [problem], hint=hint)
        members = {root: [assets[path] for path in paths] for root, paths in roots.items()}
        kept = {
            root: number
            for number, root in enumerate(roots)
            if all(selection.keeps_file(asset.path) for asset in members[root])
        }
        if not kept:
            raise none_kept(folder.assets)
        first = next(iter(kept))
        sizes = [sum(asset.size or 0 for asset in members[root]) for root in kept]
        return Listing(
            tuple(asset for root in kept for asset in members[root]),
            tuple(
                Shard(
                    tuple(asset.path for root in group for asset in members[root]),
                    [[_shown(root, entry), kept[root]] for root in group],
                )
                for group in group_by_size(kept, sizes, _SHARD_BYTES)
            ),
            common=tuple(asset.path for asset in members[first]),  # this folder defines the columns
            params={
                "roots": {
                    _shown(root, entry): [f"{entry.name}/{_joined(root, _META)}", f"{entry.name}/{_writer_of(root)}"]
                    for root in kept
                },
                "options": {option.name: selection.options.get(option.name, "") for option in self.options},
            },
            numbers=Numbers.read(selection.episodes),
            revision=folder.revision,
        )


def _shown(root: str, entry: Entry) -> str:
    """Return the name of a folder in messages."""
    return root or entry.name.rpartition("/")[2]


def _writer_of(root: str) -> str:
    """Return where `ReplayBuffer.dumps` writes the document of the writer of a storage, ``storage`` or ``storage/0``."""
    names = root.split("/")
    if _STORAGE not in names:
        return ""
    place = len(names) - 1 - names[::-1].index(_STORAGE)
    return "/".join([*names[:place], _WRITER, *names[place + 1 :], "metadata.json"])


def _roots(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return the folders that TensorDicts were written to, in numeric order, with the paths of the files.

    Pickles, and the folders of samplers and generators beside the storage of a buffer, are not among the files.
    """
    every = {*paths}
    described = {path.rpartition("/")[0] for path in every if path.rpartition("/")[2] == _META}
    tensors = {path.rpartition("/")[0] for path in every if path.endswith(_ENDING)} & described
    found: dict[str, list[str]] = {}
    for folder in sorted(described, key=natural_order):
        prefix = f"{folder}/" if folder else ""
        is_inside = any(above in described for above in _folders_above(folder))
        if is_inside or not any(one == folder or one.startswith(prefix) for one in tensors):
            continue
        found[folder] = sorted(
            path
            for path in every
            if path.startswith(prefix) and (path.endswith(_ENDING) or path.rpartition("/")[2] in _DOCUMENTS)
        )
    states = {
        _joined(above, name)
        for root in found
        for above in _folders_above(root)
        if _joined(above, _STORAGE) in {root, *_folders_above(root)}
        for name in _STATES
    }
    found = {root: members for root, members in found.items() if not states & {root, *_folders_above(root)}}
    for root, members in found.items():
        if (writer := _writer_of(root)) in every:
            members.append(writer)
    return found


def _folders_above(folder: str) -> list[str]:
    parts = folder.split("/") if folder else []
    return ["/".join(parts[:count]) for count in range(len(parts))]


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


SOURCE = TorchRL()
