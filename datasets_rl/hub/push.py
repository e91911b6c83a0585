"""Publication of stored datasets on the Hugging Face hub.

check     every file against the manifest, with the digests of the chunks of large files
send      groups of files and chunks, as large files of the repository, except files and chunks that the hub has
commit    all files in a single commit: the repository never holds a part of a dataset
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging import ERROR
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from datasets_rl import store
from datasets_rl.disk import MANIFEST_FILE, expand_home
from datasets_rl.errors import SWITCH_ON, IntegrityError, OfflineError, PushError, Remedy
from datasets_rl.fetch import fetch
from datasets_rl.fetch.asset import Asset
from datasets_rl.fetch.plan import retry_delay
from datasets_rl.format import chunks as chunking
from datasets_rl.format.chunks import CHUNKS_FILE, Chunks, Piece
from datasets_rl.format.digests import digest_of_ranges, range_digests
from datasets_rl.format.images.video_files import VIDEO_FOLDER
from datasets_rl.format.manifest import Manifest, checked_manifest
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import DATA_SUFFIXES
from datasets_rl.format.summary import read_document
from datasets_rl.hub.attached import ATTACHED, SPLIT, TABLES, attached_files
from datasets_rl.hub.readme import GENERATED, dataset_card
from datasets_rl.progress import report
from datasets_rl.settings import Settings
from datasets_rl.sources.address import repository_of
from datasets_rl.sources.base import group_by_size
from datasets_rl.store.find import locate

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

T = TypeVar("T")

_CARD = "README.md"
_GROUP_BYTES = 256 << 20
"""Bytes that are sent together. The chunks of a group are held in memory."""
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_TOKEN = Remedy("set HF_TOKEN to a token that may write, or run `hf auth login`")
_AGAIN = Remedy("push again: the files that the hub has are not sent again")


@dataclass(frozen=True, slots=True)
class Pushed:
    """A published dataset."""

    address: str
    """``hf://user/name@commit``, which always leads to this version."""
    url: str
    """The page of the dataset."""
    commit: str
    files: int
    """Number of files in the repository, with the card and the manifest."""
    bytes: int
    """Size of the dataset in bytes."""


def push(
    dataset: str | Path,
    address: str,
    *,
    private: bool = False,
    message: str = "",
    statement: Path | str | None = None,
    root: Path | str | None = None,
    settings: Settings | None = None,
) -> Pushed:
    """Publish a stored dataset in a dataset repository on the Hugging Face hub, with a dataset card.

        >>> push("d4rl/hopper-medium-v2@td3_bc", "hf://me/hopper-td3-bc")
        >>> load("hf://me/hopper-td3-bc")

    The repository is created if it does not exist. All files become visible in a single commit, which replaces the
    dataset of an earlier push. The earlier dataset stays available at the earlier commit. Repeating an interrupted call
    sends only the files that the hub does not have. The card ``README.md`` is generated, unless the repository has a
    card without the generated mark.

    Args:
        dataset: The id or the folder of a stored dataset.
        address: The repository, ``hf://user/name``, or a branch, ``hf://user/name@branch``.
        private: Whether a new repository is private. An existing repository is not changed.
        message: The commit message, by default ``Push ID with datasets-rl``.
        statement: The folder of the dataset in a statement, such as ``statement/demo-pendulum``: the datasheet, and
            croissant.json with its tables, which the viewer of the hub shows. Without, the files of an earlier statement in
            the repository are deleted, because they describe an earlier dataset.
        root: The folder of the source, by default ``<RLDS_HOME>/<source>``.
        settings: The settings, by default from the environment.

    Raises:
        UnknownIdError: If the dataset is not stored.
        InvalidArgumentError: If the address does not name a repository, or the statement is not of this dataset.
        IntegrityError: If a file of the dataset differs from the manifest. No file is published.
        PushError: If the hub does not accept the dataset, or cannot be reached.
        OfflineError: If the network is disabled.
    """
    settings = settings or Settings.from_env()
    repository, branch = repository_of(address)
    folder = store.version_folder(locate(store.id_or_path(dataset), root=root, settings=settings))
    manifest = _published_manifest(folder)
    if settings.offline:
        raise OfflineError(address, hint=SWITCH_ON)
    described = None if statement is None else expand_home(statement).absolute()
    attached = [] if described is None else attached_files(described, manifest)
    hub = _Hub.connect(repository, branch or "main", settings)
    chunks = _checked_chunks(folder, manifest, settings)
    existing = hub.create_branch(private=private)
    card = (
        dataset_card(
            manifest,
            repository,
            [path for path in TABLES if path in attached],
            has_splits=SPLIT in StoredDataset(folder).episodes.metadata_names,
        )
        if _CARD not in existing or hub.has_generated_card()
        else None
    )
    additions = hub.send(folder, manifest, chunks)
    additions += hub.attach({path: described / path for path in attached} if described else {})
    texts = {MANIFEST_FILE: (folder / MANIFEST_FILE).read_text(encoding="utf-8")}
    texts |= {CHUNKS_FILE: json.dumps(chunks.to_json(), indent=1) + "\n"} if chunks.files else {}
    texts |= {} if card is None else {_CARD: card}
    kept = {addition.path_in_repo for addition in additions} | texts.keys()
    outdated = [path for path in existing if path not in kept and MANIFEST_FILE in existing and _is_own(path)]
    commit = hub.commit(additions, texts, outdated, message or f"Push {manifest.id} with datasets-rl")
    page = f"{hub.api.endpoint}/datasets/{repository}"
    return Pushed(f"hf://{repository}@{commit}", page, commit, len(kept | {_CARD}), manifest.bytes)


def _published_manifest(folder: Path) -> Manifest:
    """Return the manifest of a dataset that others can check."""
    return checked_manifest(read_document(folder), where=str(folder / MANIFEST_FILE))


def _checked_chunks(folder: Path, manifest: Manifest, settings: Settings) -> Chunks:
    """Compare every file with the manifest, and return the chunks of the large files."""
    problems: list[str] = []
    files: dict[str, tuple[str, ...]] = {}
    size = chunking.CHUNK_BYTES
    with report(f"checking {manifest.id}", manifest.bytes, show=settings.progress) as advance:
        for entry in manifest.files:
            try:
                digest = digest_of_ranges(range_digests(folder / entry.path, advance))
                if entry.bytes > size:
                    files[entry.path] = _chunk_digests(folder / entry.path, size)
            except OSError as error:
                problems.append(f"{entry.path} cannot be read: {error.strerror}")
                continue
            if digest != entry.digest:
                problems.append(f"{entry.path} has the digest {digest[:12]}..., expected {entry.digest[:12]}...")
    if problems:
        raise IntegrityError(str(folder), problems)
    return Chunks(size, files)


def _chunk_digests(path: Path, size: int) -> tuple[str, ...]:
    """Return the SHA-256 of each chunk of a file."""
    with path.open("rb") as stream:
        return tuple(hashlib.sha256(chunk).hexdigest() for chunk in iter(lambda: stream.read(size), b""))


def _is_own(path: str) -> bool:
    """Return whether a file of a repository with a stored dataset is a file of this dataset."""
    top = path.partition("/")[0]
    return (
        path in ATTACHED
        or top in {"chunks", "metadata", VIDEO_FOLDER, CHUNKS_FILE}
        or (top == path and path.endswith(DATA_SUFFIXES))
    )


@dataclass(frozen=True)
class _Hub:
    """A branch of a dataset repository, with retries after transient failures."""

    api: HfApi
    repository: str
    branch: str
    settings: Settings

    @classmethod
    def connect(cls, repository: str, branch: str, settings: Settings) -> _Hub:
        """Return the repository, with the token of the user."""
        from huggingface_hub import HfApi, get_token

        if get_token() is None:
            raise PushError(f"hf://{repository}", "no token of the Hugging Face hub was found", hint=_TOKEN)
        return cls(HfApi(endpoint=os.environ.get("HF_ENDPOINT")), repository, branch, settings)

    def create_branch(self, *, private: bool) -> list[str]:
        """Create the repository and the branch if they do not exist, and return the paths of the existing files."""
        where: dict[str, Any] = {"repo_id": self.repository, "repo_type": "dataset"}
        self._persist(lambda: self.api.create_repo(**where, private=private or None, exist_ok=True))
        if self.branch != "main":
            self._persist(lambda: self.api.create_branch(**where, branch=self.branch, exist_ok=True))
        return list(self._persist(lambda: self.api.list_repo_files(**where, revision=self.branch)))

    def has_generated_card(self) -> bool:
        """Return whether a push or the hub generated the card of the repository."""
        quiet = replace(self.settings, progress=False)
        with tempfile.TemporaryDirectory(prefix="rlds-card-") as folder:
            address = f"hf://datasets/{self.repository}@{self.branch}/{_CARD}"
            (card,) = fetch([Asset((address,), _CARD)], Path(folder), settings=quiet)
            text = card.path.read_text(encoding="utf-8", errors="replace")
        # The hub creates a card of front matter alone.
        return GENERATED in text or not text.strip() or not text.split("---")[-1].strip()

    def send(self, folder: Path, manifest: Manifest, chunks: Chunks) -> list[CommitOperationAdd]:
        """Send the files, group by group, and return the operations that add the files."""
        pieces = [piece for entry in manifest.files for piece in chunks.pieces(entry)]
        added: list[CommitOperationAdd] = []
        label = f"sending {manifest.id}"
        with report(label, manifest.bytes, show=self.settings.progress) as advance, _without_bars():
            for group in group_by_size(pieces, (piece.bytes for piece in pieces), _GROUP_BYTES):
                additions = [_addition(folder, piece) for piece in group]
                self._persist(lambda additions=additions: self._upload(additions))  # type: ignore[misc]
                advance(sum(piece.bytes for piece in group))
                added += additions
        return added

    def attach(self, files: Mapping[str, Path]) -> list[CommitOperationAdd]:
        """Send the files of a statement, and return the operations that add the files."""
        from huggingface_hub import CommitOperationAdd

        additions = [CommitOperationAdd(path, file) for path, file in files.items()]
        if additions:
            with _without_bars():
                self._persist(lambda: self._upload(additions))
        return additions

    def _upload(self, additions: Sequence[CommitOperationAdd]) -> None:
        self.api.preupload_lfs_files(
            self.repository, additions, repo_type="dataset", revision=self.branch, num_threads=self.settings.jobs
        )

    def commit(
        self, additions: Sequence[CommitOperationAdd], texts: Mapping[str, str], outdated: Sequence[str], message: str
    ) -> str:
        """Commit the sent files together with small texts, delete outdated files, and return the commit."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        operations: list[Any] = [
            *additions,
            *(CommitOperationAdd(path, text.encode()) for path, text in texts.items()),
            *(CommitOperationDelete(path) for path in outdated),
        ]
        with _without_bars(), _addressed(self.api.endpoint):
            done = self._persist(
                lambda: self.api.create_commit(
                    self.repository,
                    operations,
                    commit_message=message,
                    repo_type="dataset",
                    revision=self.branch,
                    num_threads=self.settings.jobs,
                )
            )
        return str(done.oid)

    def _persist(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` until a call succeeds, with pauses after transient failures."""
        from huggingface_hub.errors import HfHubHTTPError

        # The HTTP library of the hub's client differs between versions of the client.
        failures: tuple[type[Exception], ...] = (*HfHubHTTPError.__bases__, OSError, RuntimeError, ValueError)
        count = 0
        while True:
            try:
                return attempt()
            except failures as error:
                failure = _Failure.of(error)
                count += 1
                if not failure.transient or count > self.settings.retries:
                    times = f" ({count} times)" if count > 1 else ""
                    raise PushError(
                        f"hf://{self.repository}", f"{failure.reason}{times}", hint=failure.remedy
                    ) from error
                time.sleep(retry_delay(count, failure.retry_after, random.random()))  # noqa: S311 - no secret


@dataclass(frozen=True)
class _Failure:
    """The reason why a request to the hub failed."""

    reason: str
    transient: bool
    retry_after: float | None = None
    remedy: Remedy = _AGAIN

    @classmethod
    def of(cls, error: BaseException) -> _Failure:
        """Return the failure of an exception of the hub's client, which may wrap the response in other exceptions."""
        chain = [error]
        while (cause := chain[-1].__cause__) is not None:
            chain.append(cause)
        responses = (getattr(exception, "response", None) for exception in chain)
        response = next((response for response in responses if response is not None), None)
        last = chain[-1]
        if response is None:
            # Without a response, errors of the connection are transient. Wrong answers are not.
            transient = not isinstance(last, (ValueError, FileNotFoundError, PermissionError))
            return cls(f"{type(last).__name__}: {' '.join(str(last).split())}", transient)
        status = int(response.status_code)
        stated = response.headers.get("x-error-message") or getattr(last, "server_message", None) or ""
        reason = f"the hub answered with status {status}{f': {stated}' if stated else ''}"
        after = response.headers.get("retry-after", "")
        remedy = _TOKEN if status in {401, 403} else _AGAIN
        return cls(reason, status in _TRANSIENT, float(after) if after.isdecimal() else None, remedy)


def _addition(folder: Path, piece: Piece) -> CommitOperationAdd:
    from huggingface_hub import CommitOperationAdd

    path = folder / piece.file
    if piece.path == piece.file:
        addition = CommitOperationAdd(piece.path, path)
    else:
        with path.open("rb") as stream:
            stream.seek(piece.start)
            addition = CommitOperationAdd(piece.path, stream.read(piece.bytes))
    if piece.sha256 is not None:
        addition.upload_info.sha256 = bytes.fromhex(piece.sha256)  # the hub refuses bytes with another sha256
    return addition


@contextmanager
def _addressed(endpoint: str) -> Iterator[None]:
    """Give the hub's client the address of the hub, which the client reads from HF_ENDPOINT only when it is imported.

    Where HF_ENDPOINT was set later, versions before 1.9 refuse the answer to a commit that the hub has made.
    """
    from huggingface_hub import constants

    imported, constants.ENDPOINT = constants.ENDPOINT, endpoint
    try:
        yield
    finally:
        constants.ENDPOINT = imported


@contextmanager
def _without_bars() -> Iterator[None]:
    """Silence the progress bars and the messages of the hub's client. This package reports progress instead."""
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    disabled, verbosity = are_progress_bars_disabled(), logging.get_verbosity()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not disabled:
            disable_progress_bars()
        logging.set_verbosity(ERROR)
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if not disabled:
                enable_progress_bars()
