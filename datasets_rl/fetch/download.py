"""From assets to files: what is there already, which address is tried next, and how failures are told."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from datasets_rl import disk
from datasets_rl.errors import DatasetsRLError, FetchError, IntegrityError, InvalidArgumentError, OfflineError
from datasets_rl.fetch import check, plan
from datasets_rl.fetch.asset import Asset, Fetched
from datasets_rl.fetch.check import CutShort, WrongBytes
from datasets_rl.fetch.parallel import CancelToken, Limiter, in_parallel
from datasets_rl.fetch.partial_download import Digest, PartialDownload, Record, digest_file, read_record
from datasets_rl.fetch.plan import Do
from datasets_rl.fetch.schemes import Get, NotThere, Remote, scheme_of, shown
from datasets_rl.progress import Report, report, waiting
from datasets_rl.settings import Settings

if TYPE_CHECKING:
    from datasets_rl.fetch.transfer import Network

__all__ = ["asking", "fetch", "fetch_local", "mirrored", "remaining_bytes", "size_of"]

_ESCAPED = ("http:", "https:", "file:")
_OTHER_BYTES = (
    "the file changed upstream, or it is a copy that somebody edited: give another one with --mirror URL or "
    "--from-local PATH, or take it as it is with --no-hash-check"
)

_CUT = "nothing of it was kept: run the same command again, or give another copy with --mirror URL or --from-local PATH"
_UNREACHED = "an address that did not answer may give the right file later"


class _SwitchedOff(NotThere):
    """The address needs the network, which RLDS_OFFLINE forbids."""


def mirrored(asset: Asset, bases: Sequence[str]) -> Asset:
    """Return the asset with its place under each mirror's base address in front of its own addresses, each once."""
    ours = []
    for base in bases:
        path = quote(asset.path) if base.lower().startswith(_ESCAPED) else asset.path
        ours.append(f"{base.rstrip('/')}/{path}")
    return replace(asset, urls=tuple(dict.fromkeys((*ours, *asset.urls))))


def remaining_bytes(assets: Sequence[Asset], folder: Path) -> int | None:
    """Return how many bytes `fetch` has still to bring, without any request; None if some size is unknown.

    Files there already, the parts of interrupted downloads and files that are used in place cost nothing.
    """
    pending = _pending(assets, folder, hash_check=True)
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
    """Have the files: those that are there already at once, the others from the first address that gives them.

    Each file is whole and checked when it stands under its name. Everything that came before a failure, a kill or
    Ctrl-C is kept, and the next call goes on behind it.

    Args:
        assets: The files wanted.
        folder: Where they go, each to its `path`; files that are used in place stay where they are.
        settings: Time limits, tries, threads, and whether the network may be used.
        hash_check: False neither compares sizes nor digests, for mirrors of edited files.
        limiter: Keeps a rate over all files, and over all calls that share it.
        label: What the progress is called.
        advance: Where bytes are counted, instead of in a progress of its own.
        cancel: Ends the work when it is raised.

    Returns:
        A `Fetched` for each asset, in their order.

    Raises:
        InvalidArgumentError: If a path leads out of the folder, or an address has an unknown scheme.
        FetchError: If no address gave a file; `OfflineError` if the network was needed and is forbidden.
        IntegrityError: If the addresses gave another file than the one wanted.
        DiskFullError: If the disk is full; what came is kept.
    """
    _check_arguments(assets)
    pending = _pending(assets, folder, hash_check=hash_check)
    expected = {path: total for path, (total, _) in pending.items()}
    known = _sum_known(expected.values())
    done = sum(done for _, done in pending.values())
    show = settings.progress and known != 0 and not settings.offline
    name = label or (assets[0].path if len(assets) == 1 else f"{len(assets)} files")
    with report(name, known, done=done, show=show and advance is None) as own:
        work = _Job(
            folder, settings, hash_check, limiter or Limiter(), advance or own, expected, cancel or CancelToken()
        )
        with work.connections():
            return work.run(assets)


@contextmanager
def asking(settings: Settings) -> Iterator[Get]:
    """Give a way to ask for lists of files, with the time limits and the tries of a download."""
    opened: list[Network] = []

    def get(url: str, headers: Mapping[str, str]) -> tuple[Any, Mapping[str, str]]:
        from datasets_rl.fetch.transfer import Network

        if not opened:
            opened.append(Network(settings, Limiter(), Report(), {}, CancelToken()))
        with waiting(f"waiting for {shown(url)}", show=settings.progress):
            return opened[0].get_json(url, headers)

    try:
        yield get
    finally:
        for network in opened:
            network.client.close()


def size_of(url: str, settings: Settings) -> int | None:
    """Return how many bytes the file at an address has, where the address says it."""
    from datasets_rl.fetch.transfer import Network

    network = Network(settings, Limiter(None), Report(), {}, CancelToken())
    try:
        with waiting(f"waiting for {shown(url)}", show=settings.progress):
            found = scheme_of(url).resolve(url, network.ask)
            if isinstance(found, Path):
                return found.stat().st_size
            length = "" if found.size is not None else network.ask(found.url, found.headers).get("content-length", "")
    except NotThere:
        return None
    finally:
        network.client.close()
    return int(length) if length.isdecimal() else found.size


def fetch_local(assets: Sequence[Asset], path: Path, *, hash_check: bool = True) -> list[Fetched]:
    """Use files that the user has, where they lie.

    Args:
        assets: The files wanted.
        path: The file, if one is wanted, or a folder that holds them under their paths or their names alone, or
            under any name if their digests are known.
        hash_check: False compares neither sizes nor digests; the first bytes are always looked at.

    Raises:
        InvalidArgumentError: If `path` does not exist, or is one file and several are wanted.
        FetchError: If a file is not there; all that are missing are named.
        IntegrityError: If a file is another one than that wanted; all such files are named.
    """
    if not path.exists():
        raise InvalidArgumentError(f"{path} does not exist", hint="give the file, or its folder")
    if path.is_file() and len(assets) != 1:
        raise InvalidArgumentError(
            f"{path} is one file, and {len(assets)} are wanted", hint="give the folder that holds them"
        )
    places = [_local_place(asset, path) for asset in assets]
    missing = [
        (str(path / asset.path), _not_there(asset))
        for asset, place in zip(assets, places, strict=True)
        if place is None
    ]
    if missing:
        raise FetchError(f"{len(missing)} of {len(assets)} files", missing, hint="give the file, or its folder")
    found: list[Fetched] = []
    problems: list[str] = []
    for asset, place in zip(assets, filter(None, places), strict=True):
        used = _use_or_say(asset, place, hash_check=hash_check)
        if isinstance(used, Fetched):
            found.append(used)
        else:
            problems.append(f"{place}: {used}")
    if problems:
        raise IntegrityError("the files given are not those expected", problems, hint=_OTHER_BYTES)
    return found


def _use_or_say(asset: Asset, path: Path, *, hash_check: bool) -> Fetched | NotThere:
    try:
        return _use(asset, path, path.absolute().as_uri(), hash_check=hash_check)
    except NotThere as reason:
        return reason


def _local_place(asset: Asset, path: Path) -> Path | None:
    relative = plan.safe_path(asset.path)
    places = [path] if path.is_file() else [path / relative, path / relative.name]
    return next((place for place in places if place.is_file()), None) or _renamed(asset, path)


def _renamed(asset: Asset, folder: Path) -> Path | None:
    """Find the file under another name, which its digest makes sure of."""
    if asset.sha256 is None or asset.size is None:
        return None
    alike = [one for one in sorted(folder.glob(f"*{plan.safe_path(asset.path).suffix}")) if one.is_file()]
    same = [
        one
        for one in alike
        if one.stat().st_size == asset.size and digest_file(one).hexdigest() == asset.sha256.lower()
    ]
    return same[0] if len(same) == 1 else None


def _not_there(asset: Asset) -> str:
    name = plan.safe_path(asset.path).name
    also = f", and no {name} in the folder itself" if name != asset.path else ""
    return f"there is no such file{also}"


def _check_arguments(assets: Sequence[Asset]) -> None:
    paths = [plan.safe_path(asset.path) for asset in assets]
    if len(set(paths)) != len(paths):
        twice = sorted({str(path) for path in paths if paths.count(path) > 1})
        raise InvalidArgumentError(f"several files would go to the same place: {', '.join(twice)}")
    for asset in assets:
        for url in asset.urls:
            scheme_of(url)


def _pending(assets: Sequence[Asset], folder: Path, *, hash_check: bool) -> dict[str, tuple[int | None, int]]:
    """Return for the path of each file that has to be brought its size, where known, and the bytes at hand."""
    pending: dict[str, tuple[int | None, int]] = {}
    for asset in assets:
        target, want = folder / plan.safe_path(asset.path), check.wanted(asset, hash_check=hash_check)
        if plan.finished(want, _finished(target, read_record(target))).do is Do.RESTART and not _lies_elsewhere(asset):
            part = PartialDownload.load(target)
            pending[asset.path] = asset.size if asset.size is not None else part.total, part.done
    return pending


def _sum_known(sizes: Iterable[int | None]) -> int | None:
    known = list(sizes)
    return None if None in known else sum(size or 0 for size in known)


def _lies_elsewhere(asset: Asset) -> bool:
    """Whether the first address that can be judged without the network names a file that is there."""
    for url in asset.urls:
        scheme = scheme_of(url)
        if not scheme.IN_PLACE:
            return False
        try:
            scheme.resolve(url, _never)
        except NotThere:
            continue
        return True
    return False


def _never(url: str, headers: object) -> dict[str, str]:
    del headers
    raise NotThere(f"no request is made for {url}")


def _finished(target: Path, record: Record | None) -> plan.Finished | None:
    try:
        facts = target.stat()
    except OSError:
        return None
    if record is None:
        return plan.Finished(facts.st_size)
    return plan.Finished(facts.st_size, record.size, record.sha256, record.mtime_ns == facts.st_mtime_ns)


def _present(asset: Asset, target: Path, *, hash_check: bool) -> Fetched | None:
    """Return the file that an earlier call or the user put there, if it is the one wanted."""
    want, record = check.wanted(asset, hash_check=hash_check), read_record(target)
    step = plan.finished(want, _finished(target, record))
    if step.do is Do.HASH:
        sha256 = digest_file(target).hexdigest()
        if sha256 != (want.sha256 or (record and record.sha256)) or check.look_at_file(asset, target):
            return None
        facts = target.stat()
        same = record is not None and record.sha256 == sha256
        url, etag = (record.url, record.etag) if record and same else (target.absolute().as_uri(), None)
        record = Record(url, facts.st_size, sha256, etag, check.known(want, hash_check=hash_check), facts.st_mtime_ns)
        record.write(target)
    elif step.do is not Do.PRESENT:
        return None
    if record is None:
        return None
    checked = record.checked if hash_check and want.sha256 is None else check.known(want, hash_check=hash_check)
    return _fetched(asset, target, record, "recorded" if hash_check and checked == "skipped" else checked)


def _fetched(asset: Asset, path: Path, record: Record, checked: str) -> Fetched:
    return Fetched(asset, path, record.size, record.sha256, record.url, record.etag, checked)


def _use(asset: Asset, path: Path, url: str, *, hash_check: bool) -> Fetched:
    """Check a file that stays where it is."""
    if wrong_kind := check.look_at_file(asset, path):
        raise NotThere(wrong_kind)
    want, size = check.wanted(asset, hash_check=hash_check), path.stat().st_size
    if want.size not in (None, size):
        # It need not be read to know that it is another one.
        raise WrongBytes(f"it has {size:,} bytes, expected {want.size:,}")
    digest = digest_file(path, md5=want.md5 is not None)
    if problems := check.compare(want, digest):
        raise WrongBytes("; ".join(problems))
    return Fetched(asset, path, size, digest.hexdigest(), url, None, check.known(want, hash_check=hash_check))


@dataclass
class _Job:
    """One call of `fetch`."""

    folder: Path
    settings: Settings
    hash_check: bool
    limiter: Limiter
    advance: Report
    expected: dict[str, int | None]
    cancel: CancelToken = field(default_factory=CancelToken)
    _network: Network | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def connections(self) -> Iterator[None]:
        """Close at the end of the block whatever was opened in it."""
        try:
            yield
        finally:
            if self._network is not None:
                self._network.client.close()

    def network(self) -> Network:
        """Return the connections, made when the first address needs them."""
        from datasets_rl.fetch.transfer import Network

        with self._lock:
            if self._network is None:
                self._network = Network(self.settings, self.limiter, self.advance, self.expected, self.cancel)
            return self._network

    def run(self, assets: Sequence[Asset]) -> list[Fetched]:
        """Have all files, several at once."""
        found: dict[int, Fetched] = {}
        workers = max(1, min(self.settings.jobs, len(assets)))
        # Few files get several connections each, many files get one each: never more than `jobs` in all.
        connections = max(1, self.settings.jobs // workers)

        def have(place: int) -> None:
            found[place] = self._have(assets[place], connections)

        in_parallel([partial(have, place) for place in range(len(assets))], workers, self.cancel)
        return [found[place] for place in range(len(assets))]

    def _have(self, asset: Asset, connections: int) -> Fetched:
        target = self.folder / plan.safe_path(asset.path)
        if there := _present(asset, target, hash_check=self.hash_check):
            return there
        failures: list[tuple[str, NotThere]] = []
        for url in self._order(asset, target):
            came = self._try(asset, url, target, connections)
            if isinstance(came, Fetched):
                return came
            failures.append((shown(url), came))
        raise _sum_up(asset, failures)

    def _order(self, asset: Asset, target: Path) -> list[str]:
        """Return the addresses, that of an interrupted download first where no other can go on with it."""
        protected = self.hash_check and asset.sha256 is not None
        part = PartialDownload.load(target)
        started = "" if protected or not part.done else part.url
        return sorted(asset.urls, key=lambda url: shown(url) != started)

    def _try(self, asset: Asset, url: str, target: Path, connections: int) -> Fetched | NotThere:
        try:
            return self._from(asset, url, target, connections)
        except NotThere as reason:
            return reason

    def _from(self, asset: Asset, url: str, target: Path, connections: int) -> Fetched:
        scheme = scheme_of(url)
        if scheme.IN_PLACE:
            path = scheme.resolve(url, _never)
            return _use(asset, Path(str(path)), url, hash_check=self.hash_check)
        if self.settings.offline:
            raise _SwitchedOff("network requests are switched off")
        remote = scheme.resolve(url, self.network().ask)
        if not isinstance(remote, Remote):
            raise NotThere(f"its scheme gave {remote}")
        with disk.disk_errors(target):
            return self._transfer(asset, url, remote, target, connections)

    def _transfer(self, asset: Asset, url: str, remote: Remote, target: Path, connections: int) -> Fetched:
        from datasets_rl.fetch.transfer import Transfer

        want = self._agree(asset, remote)
        part = PartialDownload.load(target)
        if plan.part(want, part.left, remote.address).do is Do.RESTART:
            part = PartialDownload(target, replaces=part.done)
        part.adopt(shown(url), remote.address)
        part.digest = Digest(md5=want.md5 is not None)
        record = Transfer(self.network(), asset, want, part, remote, connections).run(hash_check=self.hash_check)
        return _fetched(asset, target, record, record.checked)

    def _agree(self, asset: Asset, remote: Remote) -> plan.Wanted:
        """Return what the catalog and the server know together about a file."""
        want = check.wanted(asset, hash_check=self.hash_check)
        if not self.hash_check:
            return want
        if remote.size is not None and want.size not in (None, remote.size):
            raise WrongBytes(f"the file there has {remote.size:,} bytes, expected {want.size:,}")
        if remote.sha256 is not None and want.sha256 not in (None, remote.sha256):
            raise WrongBytes(f"the file there has sha256 {remote.sha256}, expected {want.sha256}")
        return want.completed(plan.Wanted(remote.size, remote.sha256))


def _sum_up(asset: Asset, failures: Sequence[tuple[str, NotThere]]) -> DatasetsRLError:
    told = [(url, str(reason)) for url, reason in failures]
    if any(isinstance(reason, _SwitchedOff) for _, reason in failures):
        return OfflineError(asset.path, [(url, str(why)) for url, why in failures if not isinstance(why, _SwitchedOff)])
    wrong = [reason for _, reason in failures if isinstance(reason, WrongBytes)]
    if not wrong:
        return FetchError(asset.path, told)
    hint = _CUT if all(isinstance(reason, CutShort) for reason in wrong) else _OTHER_BYTES
    if any(reason.network for _, reason in failures):
        hint = f"{hint}; {_UNREACHED}"
    return IntegrityError(asset.path, [f"{url}: {why}" for url, why in told], hint=hint)
