"""Stored datasets on the Hugging Face hub, as `push` publishes them: ``hf/user/name``, or ``hf://user/name``.

Nothing is converted: the files of the repository are those of the stored dataset. Large ones are cut into chunks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.disk import MANIFEST_FILE
from datasets_rl.errors import (
    Argument,
    Call,
    ConversionError,
    FetchError,
    InvalidArgumentError,
    OfflineError,
    Remedy,
    UnknownIdError,
)
from datasets_rl.sources.base import Entry, EpisodeReader, Listing, Option, Selection, Shard, Source, group_by_size

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.format.chunks import Chunks, Piece
    from datasets_rl.format.manifest import Manifest

__all__ = ["SOURCE", "HuggingFaceHub", "repository_of"]

_ID = re.compile(r"[A-Za-z0-9][-\w.]*/[A-Za-z0-9][-\w.]*", re.ASCII)
_SHARD_BYTES = 256 << 20
_JSON_MAX_BYTES = 64 << 20
_ENTRY = ("license", "citation", "homepage", "known_issues", "score", "time_limit")
_TOKEN = Remedy(
    "check the name and the revision; a private dataset needs a token: set HF_TOKEN, or run `hf auth login`"
)
_WHOLE = "download all of it: a part can be selected when it is opened"


class HuggingFaceHub(Source):
    """Source of stored datasets in dataset repositories of the Hugging Face hub."""

    name = "hf"
    image_forms = ()
    options = (Option("revision", "Branch, tag or commit of a dataset on the hub."),)
    restated = frozenset(_ENTRY)

    def ids(self) -> Sequence[str]:
        """Return no ids, because anyone may publish datasets."""
        return ()

    def entry(self, name: str) -> Entry:
        """Return an entry without further fields, which the manifest in the repository provides.

        Raises:
            UnknownIdError: If the id is not of the form ``user/name``.
        """
        if not _ID.fullmatch(name):
            raise UnknownIdError(f"{self.name}/{name}", known=f"datasets of the hub; expected {self.name}/USER/NAME")
        return Entry(self.name, name, homepage=f"https://huggingface.co/datasets/{name}")

    @override
    def check(self, selection: Selection) -> None:
        parts = replace(selection, options={})
        if parts != Selection():
            raise InvalidArgumentError(
                f"a dataset of the hub is downloaded as a whole; {parts} was requested", hint=_WHOLE
            )
        if "/" in selection.options.get("revision", ""):
            revision = selection.options["revision"]
            raise InvalidArgumentError(
                f"revision is {revision!r}; expected a name without '/'", hint="give the commit of this branch"
            )
        super().check(selection)

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Read the manifest and the list of chunks of one commit; see `Source.resolve`."""
        revision = selection.options.get("revision", "")
        try:
            folder = upstream.folder(name, (f"hf://datasets/{name}{f'@{revision}' if revision else ''}",))
        except FetchError as error:
            if not isinstance(error, OfflineError) and not error.unreached:
                error.hint = _TOKEN
            raise
        inside = {asset.path.removeprefix(f"{name}/"): asset for asset in folder.assets}
        manifest, chunks = _read_manifest(self.entry(name), inside, upstream)
        pieces = [piece for entry in manifest.files for piece in chunks.pieces(entry)]
        if missing := [piece.path for piece in pieces if piece.path not in inside]:
            more = f" and {len(missing) - 3:,} more files" if len(missing) > 3 else ""
            problem = f"the repository lacks {', '.join(missing[:3])}{more}, which its manifest names"
            raise ConversionError(f"{self.name}/{name}", [problem])
        return Listing(
            tuple(
                replace(inside[piece.path], size=piece.bytes, sha256=piece.sha256 or inside[piece.path].sha256)
                for piece in pieces
            ),
            tuple(_shards(pieces, name)),
            entry=_entry_of(self.entry(name), manifest),
            params={"address": folder.address},
            revision=folder.revision,
            stored_bytes={"": manifest.bytes},
            copied=manifest,
        )

    @override
    def open(self, name: str, files: Mapping[str, Path], params: Mapping[str, Any] | None = None) -> EpisodeReader:
        raise InvalidArgumentError(f"{self.name}/{name} is copied, not converted: it has no reader")


def repository_of(address: str) -> tuple[str, str]:
    """Split ``hf://user/name@revision`` into the repository and the revision, empty if it names none.

    Raises:
        InvalidArgumentError: If it is not such an address.
    """
    repository, mark, revision = address.removeprefix("hf://").rstrip("/").partition("@")
    if not address.startswith("hf://") or not _ID.fullmatch(repository) or (mark and not revision) or "/" in revision:
        raise InvalidArgumentError(f"{address!r} is not an address of a dataset; expected hf://USER/NAME[@REVISION]")
    return repository, revision


def _read_manifest(entry: Entry, inside: Mapping[str, Asset], upstream: Upstream) -> tuple[Manifest, Chunks]:
    from datasets_rl.format.chunks import CHUNKS_FILE, Chunks
    from datasets_rl.format.manifest import checked_manifest

    if MANIFEST_FILE not in inside:
        names = ", ".join(sorted(inside)[:5])
        problem = (
            f"the repository has no {MANIFEST_FILE}, so that it holds no stored dataset; its first files are {names}"
        )
        raise ConversionError(entry.id, [problem], hint=Remedy("{} publishes one", Call("push", ..., "hf://...")))
    document = _read_json(entry, inside[MANIFEST_FILE], upstream)
    manifest = checked_manifest(document, where=f"{entry.id}/{MANIFEST_FILE}")
    if CHUNKS_FILE not in inside:
        return manifest, Chunks()
    listed = _read_json(entry, inside[CHUNKS_FILE], upstream)
    return manifest, Chunks.from_json(listed, manifest, where=f"{entry.id}/{CHUNKS_FILE}")


def _read_json(entry: Entry, asset: Asset, upstream: Upstream) -> Any:
    if asset.size is not None and asset.size > _JSON_MAX_BYTES:
        problem = f"{asset.path} has {asset.size:,} bytes; expected at most {_JSON_MAX_BYTES:,}"
        raise ConversionError(entry.id, [problem])
    try:
        return json.loads(upstream.text(asset))
    except (ValueError, RecursionError) as error:
        again = Remedy("fetch it again with {}", Argument("force", True))
        raise ConversionError(entry.id, [f"{asset.path} is not JSON: {error}"], hint=again) from error


def _shards(pieces: Sequence[Piece], name: str) -> Iterator[Shard]:
    """Yield groups of pieces that are fetched together; the part of each piece is its place in the dataset."""
    for group in group_by_size(pieces, (piece.bytes for piece in pieces), _SHARD_BYTES):
        yield Shard(tuple(f"{name}/{piece.path}" for piece in group), [[piece.file, piece.start] for piece in group])


def _entry_of(entry: Entry, manifest: Manifest) -> Entry:
    from datasets_rl.sources.base import Score

    score = Score(**manifest.score) if manifest.score else None
    return replace(entry, **{name: getattr(manifest, name) for name in _ENTRY if name != "score"}, score=score)


SOURCE = HuggingFaceHub()
