"""Datasets on the Hugging Face hub: ``hf/user/name``, or by the address, ``hf://user/name``.

Of a dataset that `push` published, nothing is converted: the files of the repository are the files of the stored dataset.
Large files are cut into chunks. Other repositories have the layout of another source, which is recognized from the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.disk import MANIFEST_FILE
from datasets_rl.errors import Argument, ConversionError, FetchError, InvalidArgumentError, OfflineError, Remedy
from datasets_rl.sources.address import hub_address, is_quoted, unquoted_path
from datasets_rl.sources.addressed import Addressed
from datasets_rl.sources.base import Entry, Listing, Option, Selection, Shard, group_by_size
from datasets_rl.sources.flat.formats import ENDINGS

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset, Folder
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.format.chunks import Chunks, Piece
    from datasets_rl.format.manifest import Manifest
    from datasets_rl.sources.address_files import AddressFiles

__all__ = ["SOURCE", "HuggingFaceHub"]

_ID = re.compile(r"[A-Za-z0-9][-\w.]*/[A-Za-z0-9][-\w.]*", re.ASCII)
_FORMAT = "datasets-rl/ted"
_SHARD_BYTES = 256 << 20
_JSON_MAX_BYTES = 64 << 20
_ENTRY = ("license", "citation", "homepage", "known_issues", "score", "time_limit")
_TOKEN = Remedy(
    "check the name and the revision. A private dataset needs a token: set HF_TOKEN, or run `hf auth login`"
)
_WHOLE = "download the whole dataset: a part can be selected when the dataset is opened"


class HuggingFaceHub(Addressed):
    """Source of dataset repositories of the Hugging Face hub, and of the layout of published datasets."""

    name = "hf"
    names = "datasets of the hub, expected hf/USER/NAME"
    options = (Option("revision", "Branch, tag or commit of a dataset on the hub."),)

    @override
    def is_name(self, name: str) -> bool:
        user, _, rest = name.partition("/")
        repository, _, path = rest.partition("/")
        return bool(_ID.fullmatch(f"{user}/{repository}")) and (path == "" or is_quoted(path)) and name[-1:] != "/"

    @override
    def homepage(self, name: str) -> str:
        return f"https://huggingface.co/datasets/{'/'.join(name.split('/')[:2])}"

    @override
    def address(self, name: str, selection: Selection) -> str:
        return hub_address(name, selection.options.get("revision", ""))

    @override
    def check(self, selection: Selection) -> None:
        if "/" in selection.options.get("revision", ""):
            revision = selection.options["revision"]
            raise InvalidArgumentError(
                f"revision is {revision!r}, expected a name without '/'", hint="give the commit of this branch"
            )
        super().check(selection)

    @override
    def files_at(self, name: str, selection: Selection, upstream: Upstream) -> Folder:
        user, repository, *path = name.split("/", 2)
        try:
            if not path or not name.lower().endswith(ENDINGS):
                return super().files_at(name, selection, upstream)
            # The list of a folder has the commit, and the size and the digest of each file.
            above = name.rpartition("/")[0]
            folder = upstream.folder(above, (self.address(above, selection),))
        except FetchError as error:
            if not isinstance(error, OfflineError) and not error.unreached:
                error.hint = _TOKEN
            raise
        assets = [asset for asset in folder.assets if asset.path == f"{above}/{unquoted_path(name.rpartition('/')[2])}"]
        if not assets:
            raise ConversionError(f"{self.name}/{name}", [f"the repository {user}/{repository} has no such file"])
        return replace(folder, assets=(replace(assets[0], path=f"{name}/{assets[0].path.rpartition('/')[2]}"),))

    @override
    def recognize(self, files: AddressFiles) -> str:
        stated = files.document(MANIFEST_FILE).get("format")
        return f"{MANIFEST_FILE} is of the format {stated}" if stated == _FORMAT else ""

    @override
    def resolve_files(self, entry: Entry, folder: Folder, selection: Selection, upstream: Upstream) -> Listing:
        """Read the manifest and the list of chunks, see `Source.resolve_files`."""
        parts = replace(selection, options={})
        if parts != Selection():
            raise InvalidArgumentError(
                f"a published dataset is downloaded as a whole, but {parts} was requested", hint=_WHOLE
            )
        name = entry.name
        inside = {asset.path.removeprefix(f"{name}/"): asset for asset in folder.assets}
        manifest, chunks = _read_manifest(entry, inside, upstream)
        pieces = [piece for listed in manifest.files for piece in chunks.pieces(listed)]
        if missing := [piece.path for piece in pieces if piece.path not in inside]:
            more = f" and {len(missing) - 3:,} more files" if len(missing) > 3 else ""
            problem = f"it lacks {', '.join(missing[:3])}{more}, which the manifest names"
            raise ConversionError(entry.id, [problem])
        return Listing(
            tuple(
                replace(inside[piece.path], size=piece.bytes, sha256=piece.sha256 or inside[piece.path].sha256)
                for piece in pieces
            ),
            tuple(_shards(pieces, name)),
            entry=_entry_of(entry, manifest),
            params={"address": folder.address},
            revision=folder.revision,
            stored_bytes={"": manifest.bytes},
            copied=manifest,
        )


def _read_manifest(entry: Entry, inside: Mapping[str, Asset], upstream: Upstream) -> tuple[Manifest, Chunks]:
    from datasets_rl.format.chunks import CHUNKS_FILE, Chunks
    from datasets_rl.format.manifest import checked_manifest

    document = _read_json(entry, inside[MANIFEST_FILE], upstream)
    manifest = checked_manifest(document, where=f"{entry.id}/{MANIFEST_FILE}")
    if CHUNKS_FILE not in inside:
        return manifest, Chunks()
    listed = _read_json(entry, inside[CHUNKS_FILE], upstream)
    return manifest, Chunks.from_json(listed, manifest, where=f"{entry.id}/{CHUNKS_FILE}")


def _read_json(entry: Entry, asset: Asset, upstream: Upstream) -> Any:
    if asset.size is not None and asset.size > _JSON_MAX_BYTES:
        problem = f"{asset.path} has {asset.size:,} bytes, expected at most {_JSON_MAX_BYTES:,}"
        raise ConversionError(entry.id, [problem])
    try:
        return json.loads(upstream.text(asset))
    except (ValueError, RecursionError) as error:
        again = Remedy("fetch the file again with {}", Argument("force", True))
        raise ConversionError(entry.id, [f"{asset.path} is not JSON: {error}"], hint=again) from error


def _shards(pieces: Sequence[Piece], name: str) -> Iterator[Shard]:
    """Yield groups of pieces that are fetched together. The part of each piece is the place in the dataset."""
    for group in group_by_size(pieces, (piece.bytes for piece in pieces), _SHARD_BYTES):
        yield Shard(tuple(f"{name}/{piece.path}" for piece in group), [[piece.file, piece.start] for piece in group])


def _entry_of(entry: Entry, manifest: Manifest) -> Entry:
    from datasets_rl.sources.base import Score

    score = Score(**manifest.score) if manifest.score else None
    return replace(entry, **{name: getattr(manifest, name) for name in _ENTRY if name != "score"}, score=score)


SOURCE = HuggingFaceHub()
