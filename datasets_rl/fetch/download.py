"""Download of assets: reuse of existing files, order of the addresses, and errors that report every failure."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from datasets_rl import disk
from datasets_rl.errors import (
    Argument,
    DatasetsRLError,
    FetchError,
    IntegrityError,
    InvalidArgumentError,
    OfflineError,
    Remedy,
)
from datasets_rl.fetch import check, plan
from datasets_rl.fetch.asset import Asset, Fetched
from datasets_rl.fetch.check import TruncatedFileError, WrongFileError
from datasets_rl.fetch.parallel import CancelToken, Limiter, run_in_parallel
from datasets_rl.fetch.partial_download import Digest, PartialDownload, Record, digest_file, read_record
from datasets_rl.fetch.plan import Action
from datasets_rl.fetch.schemes import Get, NotServedError, Remote, Slice, local_file, scheme_of, without_credentials
from datasets_rl.fetch.schemes.base import header_bytes
from datasets_rl.progress import Report, report, waiting
from datasets_rl.settings import Settings

if TYPE_CHECKING:
    from datasets_rl.fetch.transfer import Network

_ESCAPED = ("http:", "https:", "file:")
_COPY_BYTES = 1 << 20
_COPY = Remedy("give another copy with {} or {}", Argument("mirrors"), Argument("from_local"))
_OTHER_BYTES = Remedy(
    "the file changed upstream, or is an edited copy: {}, or accept this file with {}",
    _COPY,
    Argument("hash_check", False),
)
_CUT = Remedy("no bytes of the file were kept: repeat the same call, or {}", _COPY)
_POINTER = Remedy("run `git lfs pull` in the clone of the repository, which fetches the files, or {}", _COPY)
_UNREACHED = "An address that did not answer may serve the right file later"


class _OfflineRefusal(NotServedError):
    """The address needs the network, which RLDS_OFFLINE forbids."""


def with_mirrors(asset: Asset, bases: Sequence[str]) -> Asset:
    """Return the asset with the addresses below the mirrors before the asset's own addresses, without duplicates."""
    urls = []
    for base in bases:
        path = quote(asset.path) if base.lower().startswith(_ESCAPED) else asset.path
        urls.append(f"{base.rstrip('/')}/{path}")
    return replace(asset, urls=tuple(dict.fromkeys((*urls, *asset.urls))))


def remaining_bytes(assets: Sequence[Asset], folder: Path) -> int | None:
    """Return how many bytes `fetch` would download, or None if a size is unknown. No request is sent.

    Existing files, the bytes of interrupted downloads and files that are used in place are not counted.
    """
    pending = _pending_sizes(assets, folder, hash_check=True)
    return _sum_known(None if total is None else max(0, total - done) for total, done in pending.values())


def fetch(
    assets: Sequence[Asset],
    folder: Path,
    *,
    settings: Settings,
    hash_check: bool = True,
    limiter: Limiter | None = None,
    label: str = "",
    advance: Report | None = None,
    cancel: CancelToken | None = None,
) -> list[Fetched]:
    """Fetch files: reuse existing files, and download each missing file from the first address that serves the file.

    A file gets its final name only after all bytes are fetched and checked. The bytes that were fetched before a
    failure, a kill or Ctrl-C are kept, and the next call resumes after these bytes.

    Args:
        assets: The files to fetch.
        folder: Destination folder. Each file is written to `folder / asset.path`, except files that are used in place.
        settings: Timeouts, retries, threads, and whether the network may be used.
        hash_check: False skips the comparison of sizes and digests, for mirrors with edited files.
        limiter: Rate limit for all files, and for all calls that share it.
        label: Label of the progress bar.
        advance: Callback that counts bytes, instead of a progress bar of this call.
        cancel: Token that cancels the download.

    Returns:
        A `Fetched` for each asset, in the order of `assets`.

    Raises:
        InvalidArgumentError: If a path leads out of the folder, or an address has an unknown scheme.
        FetchError: If no address served a file, or as `OfflineError` if the network is needed but forbidden.
        IntegrityError: If the addresses served other files than expected.
        DiskFullError: If the disk is full. The fetched bytes are kept.
    """
    _check_arguments(assets)
    pending = _pending_sizes(assets, folder, hash_check=hash_check)
    expected = {path: total for path, (total, _) in pending.items()}
    total = _sum_known(expected.values())
    done = sum(done for _, done in pending.values())
    show = settings.progress and total != 0 and not settings.offline
    name = label or (assets[0].path if len(assets) == 1 else f"{len(assets)} files")
    with report(name, total, done=done, show=show and advance is None) as own:
        job = _Job(
            folder, settings, hash_check, limiter or Limiter(), advance or own, expected, cancel or CancelToken()
        )
        try:
            return job.run(assets)
        finally:
            job.close()


@contextmanager
def json_client(settings: Settings) -> Iterator[Get]:
    """Yield a function that requests JSON, such as file lists, with the timeouts and retries of a download."""
    opened: list[Network] = []

    def get(url: str, headers: Mapping[str, str]) -> tuple[Any, Mapping[str, str]]:
        from datasets_rl.fetch.transfer import Network

        if not opened:
            opened.append(Network(settings))
        with waiting(f"waiting for {without_credentials(url)}", show=settings.progress):
            return opened[0].get_json(url, headers)

    try:
        yield get
    finally:
        for network in opened:
            network.client.close()


def size_of_url(url: str, settings: Settings) -> int | None:
    """Return the size in bytes of the file at an address, or None if the address does not report a size."""
    from datasets_rl.fetch.transfer import Network

    network = Network(settings)
    try:
        with waiting(f"waiting for {without_credentials(url)}", show=settings.progress):
            file = scheme_of(url).resolve(url, network.ask)
            if isinstance(file, Path | Slice):
                return file.stat().st_size if isinstance(file, Path) else file.size
            if file.size is not None:
                return file.size
            return header_bytes(network.ask(file.url, file.headers), "content-length")
    except NotServedError:
        return None
    finally:
        network.client.close()


def digest_local(url: str) -> str:
    """Return the sha256 of a file on this machine, which may be in an archive.

    Raises:
        NotServedError: If there is no such file.
    """
    local = local_file(url)
    if not isinstance(local, Slice):
        return digest_file(Path(str(local))).hexdigest()
    digest = hashlib.sha256()
    for block in _blocks(local):
        digest.update(block)
    return digest.hexdigest()


def _blocks(place: Slice) -> Iterator[bytes]:
    """Yield the bytes of a file in an archive.

    Raises:
        NotServedError: If the archive ends before the file.
    """
    remaining = place.size
    with place.path.open("rb") as archive:
        archive.seek(place.start)
        while remaining and (block := archive.read(min(remaining, _COPY_BYTES))):
            yield block
            remaining -= len(block)
    if remaining:
        raise NotServedError(f"the archive ends {remaining:,} bytes before the end of the file in the archive")


def fetch_local(assets: Sequence[Asset], path: Path, *, hash_check: bool = True) -> list[Fetched]:
    """Use files of the user in place, without a copy.

    Args:
        assets: The expected files.
        path: The file, if there is a single asset, or a folder with the files. A file is found by its path, by its
            name, or, if the digest is known, by its digest.
        hash_check: False skips the comparison of sizes and digests. The first bytes are always checked.

    Raises:
        InvalidArgumentError: If `path` does not exist, or is a single file for several assets.
        FetchError: If a file is missing. The error names every missing file.
        IntegrityError: If a file differs from the expected file. The error names every such file.
    """
    if not path.exists():
        raise InvalidArgumentError(f"{path} does not exist", hint="give the file, or the folder of the file")
    if path.is_file() and len(assets) != 1:
        raise InvalidArgumentError(
            f"{path} is a single file, but the dataset has {len(assets)} files", hint="give the folder of the files"
        )
    files = [_find_local(asset, path) for asset in assets]
    missing = [
        (str(path / asset.path), _missing_text(asset))
        for asset, file in zip(assets, files, strict=True)
        if file is None
    ]
    if missing:
        raise FetchError(
            f"{len(missing)} of {len(assets)} files", missing, hint="give the file, or the folder of the file"
        )
    fetched: list[Fetched] = []
    problems: list[str] = []
    for asset, file in zip(assets, filter(None, files), strict=True):
        try:
            fetched.append(_check_in_place(asset, file, file.absolute().as_uri(), hash_check=hash_check))
        except NotServedError as reason:
            problems.append(f"{file}: {reason}")
    if problems:
        hint = _POINTER if any(check.POINTER in problem for problem in problems) else _OTHER_BYTES
        raise IntegrityError("the given files are not the expected files", problems, hint=hint)
    return fetched


def _find_local(asset: Asset, path: Path) -> Path | None:
    relative = plan.safe_path(asset.path)
    candidates = [path] if path.is_file() else [path / relative, path / relative.name]
    return next((candidate for candidate in candidates if candidate.is_file()), None) or _find_renamed(asset, path)


def _find_renamed(asset: Asset, folder: Path) -> Path | None:
    """Find the file under another name by its digest."""
    if asset.sha256 is None or asset.size is None:
        return None
    candidates = [path for path in sorted(folder.glob(f"*{plan.safe_path(asset.path).suffix}")) if path.is_file()]
    same = [
        path
        for path in candidates
        if path.stat().st_size == asset.size and digest_file(path).hexdigest() == asset.sha256.lower()
    ]
    return same[0] if len(same) == 1 else None


def _missing_text(asset: Asset) -> str:
    name = plan.safe_path(asset.path).name
    also = f", and no {name} in the folder itself" if name != asset.path else ""
    return f"there is no such file{also}"


def _check_arguments(assets: Sequence[Asset]) -> None:
    paths = [plan.safe_path(asset.path) for asset in assets]
    if len(set(paths)) != len(paths):
        duplicates = sorted({str(path) for path in paths if paths.count(path) > 1})
        raise InvalidArgumentError(f"several files have the same path: {', '.join(duplicates)}")
    for asset in assets:
        for url in asset.urls:
            scheme_of(url)


def _pending_sizes(assets: Sequence[Asset], folder: Path, *, hash_check: bool) -> dict[str, tuple[int | None, int]]:
    """Map the path of each file to download to (size, bytes on disk). The size is None if unknown."""
    pending: dict[str, tuple[int | None, int]] = {}
    for asset in assets:
        target, want = folder / plan.safe_path(asset.path), check.expected_file(asset, hash_check=hash_check)
        existing = plan.decide_existing(want, _existing_file(target, read_record(target)))
        if existing.action is Action.RESTART and not _is_local(asset):
            part = PartialDownload.load(target)
            pending[asset.path] = asset.size if asset.size is not None else part.total, part.done
    return pending


def _sum_known(sizes: Iterable[int | None]) -> int | None:
    values = list(sizes)
    return None if None in values else sum(size or 0 for size in values)


def _is_local(asset: Asset) -> bool:
    """Return whether an existing local file precedes the first address that needs the network."""
    for url in asset.urls:
        with suppress(NotServedError):
            return local_file(url) is not None
    return False


def _existing_file(target: Path, record: Record | None) -> plan.ExistingFile | None:
    try:
        stat = target.stat()
    except OSError:
        return None
    if record is None:
        return plan.ExistingFile(stat.st_size)
    return plan.ExistingFile(stat.st_size, record.size, record.sha256, record.mtime_ns == stat.st_mtime_ns)


def _find_present(asset: Asset, target: Path, *, hash_check: bool) -> Fetched | None:
    """Return the file that an earlier call or the user stored as `target`, if this is the expected file."""
    want, record = check.expected_file(asset, hash_check=hash_check), read_record(target)
    step = plan.decide_existing(want, _existing_file(target, record))
    if step.action is Action.HASH:
        sha256 = digest_file(target).hexdigest()
        if sha256 != (want.sha256 or (record and record.sha256)) or check.file_format_problem(asset, target):
            return None
        stat = target.stat()
        same = record is not None and record.sha256 == sha256
        url, etag = (record.url, record.etag) if record and same else (target.absolute().as_uri(), None)
        record = Record(
            url, stat.st_size, sha256, etag, check.check_kind(want, hash_check=hash_check), stat.st_mtime_ns
        )
        record.write(target)
    elif step.action is not Action.PRESENT:
        return None
    if record is None:
        return None
    checked = record.checked if hash_check and want.sha256 is None else check.check_kind(want, hash_check=hash_check)
    return _fetched_from_record(asset, target, record, "recorded" if hash_check and checked == "skipped" else checked)


def _fetched_from_record(asset: Asset, path: Path, record: Record, checked: str) -> Fetched:
    return Fetched(asset, path, record.size, record.sha256, record.url, record.etag, checked)


def _check_in_place(asset: Asset, path: Path, url: str, *, hash_check: bool) -> Fetched:
    """Check a file that is used in place."""
    if wrong_kind := check.file_format_problem(asset, path):
        raise NotServedError(wrong_kind)
    want, size = check.expected_file(asset, hash_check=hash_check), path.stat().st_size
    if want.size not in (None, size):
        # The size alone shows that this is another file, which need not be read.
        raise WrongFileError(f"the file has {size:,} bytes, expected {want.size:,}")
    digest = digest_file(path, md5=want.md5 is not None)
    if problems := check.differences(want, digest):
        raise WrongFileError("; ".join(problems))
    return Fetched(asset, path, size, digest.hexdigest(), url, None, check.check_kind(want, hash_check=hash_check))


@dataclass
class _Job:
    """State of one call of `fetch`."""

    folder: Path
    settings: Settings
    hash_check: bool
    limiter: Limiter
    advance: Report
    expected: dict[str, int | None]
    cancel: CancelToken = field(default_factory=CancelToken)
    _network: Network | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        """Close the connections."""
        if self._network is not None:
            self._network.client.close()

    def network(self) -> Network:
        """Return the HTTP client, which is created at the first call."""
        from datasets_rl.fetch.transfer import Network

        with self._lock:
            if self._network is None:
                self._network = Network(self.settings, self.limiter, self.advance, self.expected, self.cancel)
            return self._network

    def run(self, assets: Sequence[Asset]) -> list[Fetched]:
        """Fetch all files concurrently, and return the fetched files in the order of `assets`."""
        fetched: dict[int, Fetched] = {}
        workers = max(1, min(self.settings.jobs, len(assets)))
        # Few files get several connections each. Many files get a single connection each. The total is at most `jobs`.
        connections = max(1, self.settings.jobs // workers)

        def fetch_one(index: int) -> None:
            fetched[index] = self._fetch(assets[index], connections)

        run_in_parallel([partial(fetch_one, index) for index in range(len(assets))], workers, self.cancel)
        return [fetched[index] for index in range(len(assets))]

    def _fetch(self, asset: Asset, connections: int) -> Fetched:
        target = self.folder / plan.safe_path(asset.path)
        if present := _find_present(asset, target, hash_check=self.hash_check):
            return present
        failures: list[tuple[str, NotServedError]] = []
        for url in self._ordered_urls(asset, target):
            try:
                return self._fetch_from(asset, url, target, connections)
            except NotServedError as reason:
                failures.append((without_credentials(url), reason))
        raise _combined_error(asset, failures)

    def _ordered_urls(self, asset: Asset, target: Path) -> list[str]:
        """Return the addresses, first the address of an interrupted download if no other address can resume."""
        protected = self.hash_check and asset.sha256 is not None
        part = PartialDownload.load(target)
        started = "" if protected or not part.done else part.url
        return sorted(asset.urls, key=lambda url: without_credentials(url) != started)

    def _fetch_from(self, asset: Asset, url: str, target: Path, connections: int) -> Fetched:
        if local := local_file(url):
            if isinstance(local, Path):
                return _check_in_place(asset, local, url, hash_check=self.hash_check)
            copied = _check_in_place(asset, self._copy_slice(local, target), url, hash_check=self.hash_check)
            # The record distinguishes the copy from a file of the user, which would never be deleted.
            Record(url, copied.size, copied.sha256, None, copied.checked, target.stat().st_mtime_ns).write(target)
            return copied
        if self.settings.offline:
            raise _OfflineRefusal("network requests are switched off")
        remote = scheme_of(url).resolve(url, self.network().ask)
        if not isinstance(remote, Remote):
            raise NotServedError(
                f"the resolver of the URL scheme returned {remote!r}, expected a Remote, or a local path for a local scheme"
            )
        with disk.disk_errors(target):
            return self._transfer(asset, url, remote, target, connections)

    def _copy_slice(self, place: Slice, target: Path) -> Path:
        """Copy a file out of an archive. Only the complete copy gets the final name."""
        partial = target.with_name(f"{target.name}.part")
        with disk.disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            disk.require_free(target, place.size, f"a copy of {target.name}")
            with partial.open("wb") as file:
                for block in _blocks(place):
                    self.cancel.check()
                    file.write(block)
            disk.publish_file(partial, target)
        return target

    def _transfer(self, asset: Asset, url: str, remote: Remote, target: Path, connections: int) -> Fetched:
        from datasets_rl.fetch.transfer import Transfer

        want = self._expected(asset, remote)
        part = PartialDownload.load(target)
        if plan.decide_resume(want, part.state, remote.address).action is Action.RESTART:
            part = PartialDownload(target, replaces=part.done)
        part.adopt(without_credentials(url), remote.address)
        part.digest = Digest(md5=want.md5 is not None)
        record = Transfer(self.network(), asset, want, part, remote, connections).run(hash_check=self.hash_check)
        return _fetched_from_record(asset, target, record, record.checked)

    def _expected(self, asset: Asset, remote: Remote) -> plan.ExpectedFile:
        """Return the expected size and checksums of a file, combined from the catalog and the server."""
        want = check.expected_file(asset, hash_check=self.hash_check)
        if not self.hash_check:
            return want
        if remote.size is not None and want.size not in (None, remote.size):
            raise WrongFileError(f"the served file has {remote.size:,} bytes, expected {want.size:,}")
        if remote.sha256 is not None and want.sha256 not in (None, remote.sha256):
            raise WrongFileError(f"the served file has sha256 {remote.sha256}, expected {want.sha256}")
        return want.completed(plan.ExpectedFile(remote.size, remote.sha256))


def _combined_error(asset: Asset, failures: Sequence[tuple[str, NotServedError]]) -> DatasetsRLError:
    texts = [(url, str(reason)) for url, reason in failures]
    if any(isinstance(reason, _OfflineRefusal) for _, reason in failures):
        reached = [(url, str(reason)) for url, reason in failures if not isinstance(reason, _OfflineRefusal)]
        return OfflineError(asset.path, reached)
    wrong = [reason for _, reason in failures if isinstance(reason, WrongFileError)]
    is_pointer = any(check.POINTER in text for _, text in texts)
    if not wrong:
        unreached = bool(failures) and all(reason.network for _, reason in failures)
        return FetchError(asset.path, texts, unreached=unreached, hint=_POINTER if is_pointer else "")
    hint = _CUT if all(isinstance(reason, TruncatedFileError) for reason in wrong) else _OTHER_BYTES
    hint = _POINTER if is_pointer else hint
    if any(reason.network for _, reason in failures):
        hint = Remedy("{}. {}", hint, _UNREACHED)
    return IntegrityError(asset.path, [f"{url}: {text}" for url, text in texts], hint=hint)
