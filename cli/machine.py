"""Checks of this machine for downloads and training runs: packages, disk and network, each by a real use."""

from __future__ import annotations

import importlib
import importlib.metadata
import mmap
import os
import platform
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from datasets_rl import disk, sources
from datasets_rl.downloading import planning
from datasets_rl.errors import (
    DatasetsRLError,
    DiskFullError,
    FetchError,
    IntegrityError,
    LibraryError,
    MissingDependencyError,
)
from datasets_rl.fetch.asset import Asset
from datasets_rl.fetch.probe import Probe, probe_all
from datasets_rl.fetch.schemes import scheme_of, without_credentials
from datasets_rl.settings import Settings, memory_bytes

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_DISTRIBUTION = "datasets-rl"
_PROBED_FILES = 8
"""Maximum number of files of a dataset that are all probed. Of more files, the first file at each host is probed."""
_FREE_MIN = 1 << 30
_TEST_BYTES = 1 << 20
_TEST_PREFIX = ".rlds-doctor-"
_NETWORK_SYSTEMS = re.compile("nfs|cifs|smb|lustre|gpfs|beegfs|ceph|fuse|9p|afs")


@dataclass(frozen=True)
class Check:
    """Result of a check."""

    area: str
    """"environment", "packages", "disk" or "network"."""
    name: str
    found: str
    """The value that was found."""
    problem: type[Exception] | None = None
    """The error that a command would end with. None without a problem."""
    hint: str = ""
    """What to do next."""


@dataclass(frozen=True)
class Reachability:
    """The answers of the addresses of a file of a dataset."""

    dataset: str
    file: str
    of: int
    """The number of files that the probe stands for."""
    size: int | None
    """The expected size."""
    probes: tuple[Probe, ...]

    @property
    def problem(self) -> type[Exception] | None:
        """The error of a download, None if any address serves the file."""
        if any(not self.misfit(one) for one in self.probes):
            return None
        return FetchError if any(one.problem for one in self.probes) or not self.probes else IntegrityError

    def misfit(self, probe: Probe) -> str:
        """Return why an address does not serve the expected file. Empty if the address serves the file."""
        if not probe.problem and None not in (self.size, probe.size) and probe.size != self.size:
            return f"the file has {probe.size:,} bytes, expected {self.size:,}"
        return probe.problem


def environment_checks() -> Iterator[Check]:
    """Yield the versions of Python and the system, and the cores and the memory that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Check("environment", "python", f"{platform.python_version()} ({sys.executable})")
    yield Check("environment", "system", platform.platform())
    yield Check("environment", "cores", f"{cores} of {os.cpu_count()}")
    if (memory := memory_bytes()) < float("inf"):
        yield Check("environment", "memory", f"{memory / 1e9:.1f} GB")


def package_checks() -> Iterator[Check]:
    """Yield a check for each required package, and for each extra."""
    from packaging.requirements import Requirement

    needed = [Requirement(text) for text in importlib.metadata.requires(_DISTRIBUTION) or ()]
    extras = importlib.metadata.metadata(_DISTRIBUTION).get_all("Provides-Extra") or []
    for one in needed:
        if one.marker is None or ("extra" not in str(one.marker) and one.marker.evaluate()):
            found, fits = _installed(one)
            hint = "" if fits else f"pip install '{one.name}{one.specifier}'"
            yield Check("packages", one.name, found, None if fits else MissingDependencyError, hint)
    yield from _import_checks()
    for extra in (one for one in extras if one != "test"):
        own = [one for one in needed if one.marker is not None and one.marker.evaluate({"extra": extra})]
        own = [one for one in own if "extra" in str(one.marker)]
        states = [(one, *_installed(one)) for requirement in own for one in _with_extras(requirement)]
        wrong = [one for one, found, fits in states if not fits and found != _MISSING]
        text = ", ".join(f"{one.name} {found}" for one, found, _ in states)
        hint = "" if all(fits for _, _, fits in states) else f"pip install '{_DISTRIBUTION}[{extra}]'"
        yield Check("packages", f"extra {extra}", text, MissingDependencyError if wrong else None, hint)


_MISSING = "not installed"


def _with_extras(requirement: Requirement) -> Iterator[Requirement]:
    """Yield a requirement, and what its own extras require: ``gymnasium[mujoco]`` requires ``mujoco``."""
    from packaging.requirements import Requirement

    yield requirement
    try:
        further = [Requirement(text) for text in importlib.metadata.requires(requirement.name) or ()]
    except importlib.metadata.PackageNotFoundError:
        return
    for extra in sorted(requirement.extras):
        for one in further:
            marker = one.marker
            if marker is not None and not marker.evaluate({"extra": ""}) and marker.evaluate({"extra": extra}):
                yield from _with_extras(one)


def _installed(requirement: Requirement) -> tuple[str, bool]:
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return _MISSING, False
    fits = requirement.specifier.contains(version, prereleases=True)
    return version if fits else f"{version}, expected {requirement.specifier}", fits


def _import_checks() -> Iterator[Check]:
    for name in ("torch", "tensordict"):
        began = time.perf_counter()
        try:
            module = importlib.import_module(name)
        except (ImportError, OSError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            missing = isinstance(error, ModuleNotFoundError) and error.name == name
            problem = MissingDependencyError if missing else LibraryError
            yield Check("packages", f"import {name}", reason, problem, f"pip install --upgrade {name}")
            continue
        text = f"{time.perf_counter() - began:.1f} s"
        if name == "torch":
            gpu = f"{module.cuda.device_count()} GPUs" if module.cuda.is_available() else "no GPU"
            text += f", {module.get_num_threads()} threads, {gpu}"
        yield Check("packages", f"import {name}", text)


def disk_checks(home: Path, needed: int | None = None) -> Iterator[Check]:
    """Yield checks of the data folder. The checks of the file system write, rename and map a small file in the folder.

    Args:
        home: The folder, which need not exist.
        needed: Bytes that have to be free.
    """
    exists = "" if home.is_dir() else ", which will be created"
    yield Check("disk", "folder", f"{home}{exists}")
    folder = next((one for one in (home, *home.absolute().parents) if one.exists()), home)
    if not folder.is_dir():
        yield Check("disk", "write", f"{folder} is not a folder", NotADirectoryError, "choose another folder")
        return
    kind = _file_system(folder)
    remark = " (a network file system: locks and mapped files may be slow)" if _NETWORK_SYSTEMS.search(kind) else ""
    yield Check("disk", "file system", f"{kind}{remark}")
    free = disk.free_bytes(folder)
    short = free < (_FREE_MIN if needed is None else needed)
    wanted = f", expected {'at least ' if needed is None else ''}{(needed or _FREE_MIN) / 1e9:.1f} GB" if short else ""
    problem = DiskFullError if short else None
    yield Check("disk", "free", f"{free / 1e9:.1f} GB{wanted}", problem, "free some space, or use another disk" * short)
    _remove_old_tests(folder)
    try:
        with tempfile.TemporaryDirectory(prefix=_TEST_PREFIX, dir=folder) as scratch:
            yield from _use_checks(Path(scratch))
    except OSError as error:
        yield Check(
            "disk", "write", f"{folder}: {error.strerror}", type(error), "fix its permissions, or use another folder"
        )


def _use_checks(folder: Path) -> Iterator[Check]:
    uses: Sequence[tuple[str, Callable[[Path], str]]] = (
        ("write and sync", _write),
        ("atomic rename", _rename),
        ("memory mapping", _map),
        ("hard links", _link),
        ("locks", _lock),
    )
    for name, use in uses:
        try:
            yield Check("disk", name, use(folder))
        except OSError as error:
            yield Check("disk", name, f"{error.strerror}", type(error), "use a folder on another file system")


def _write(folder: Path) -> str:
    began = time.perf_counter()
    with (folder / "a").open("wb") as stream:
        stream.write(os.urandom(_TEST_BYTES))
        disk.sync_stream(stream)
    return f"1 MB in {(time.perf_counter() - began) * 1e3:.0f} ms"


def _rename(folder: Path) -> str:
    (folder / "b").write_bytes(b"old")
    disk.move_path(folder / "a", folder / "b")
    if (folder / "b").stat().st_size != _TEST_BYTES:
        raise OSError(0, "the renamed file does not have the content that was written")
    return "yes"


def _map(folder: Path) -> str:
    with (folder / "b").open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as mapped:
        mapped[:3] = b"new"
        mapped.flush()
    if (folder / "b").read_bytes()[:3] != b"new":
        raise OSError(0, "bytes that a mapping wrote cannot be read")
    return "yes"


def _link(folder: Path) -> str:
    return "yes" if disk.link_file(folder / "b", folder / "e") else "no, so versions of datasets are copied"


def _lock(folder: Path) -> str:
    with disk.lock(folder / "f.lock", "the disk check", wait=0):
        return "yes"


def _remove_old_tests(folder: Path) -> None:
    """Delete what an earlier check left that was killed."""
    with suppress(OSError):
        for path in folder.glob(f"{_TEST_PREFIX}*"):
            if time.time() - path.stat().st_mtime > 3600:
                disk.remove_tree(path)


def _file_system(folder: Path) -> str:
    """Return the kind of the file system of a folder: the kind of the innermost mount above."""
    with suppress(OSError):
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text("utf-8").splitlines()]
        real = folder.resolve()
        above = [
            (len(mount_point), kind)
            for _, mount_point, kind, *_ in mounts
            if real == Path(mount_point) or Path(mount_point) in real.parents
        ]
        return max(above)[1] if above else "unknown"
    return "unknown"


def network_checks(settings: Settings) -> Iterator[Check]:
    """Yield whether the network may be used, and through which proxies."""
    yield Check("network", "requests", "disabled by the setting offline" if settings.offline else "allowed")
    for name, url in sorted(urllib.request.getproxies().items()):
        shown = without_credentials(url) if "://" in url else url
        yield Check("network", f"proxy for {name}" if name != "no" else "without a proxy", shown)


def reachability(wanted: str, settings: Settings) -> tuple[list[Reachability], dict[str, DatasetsRLError], int | None]:
    """Probe the addresses of a dataset, of a dataset of a source, or of a dataset of every source.

    Args:
        wanted: An id, a source, or an empty text.
        settings: The mirrors, timeouts, and whether the network may be used.

    Returns:
        The answers, the errors of upstreams that did not list the files of a dataset, and the bytes that a download of
        the dataset needs, if named.

    Raises:
        UnknownIdError: If there is no such source or dataset.
    """
    if "/" in wanted or ":" in wanted:
        sources.find(wanted)
        ids = [wanted]
    else:
        names = [sources.get_source(wanted).name] if wanted else sources.source_names()
        ids = [one for one in map(_first_id, names) if one]
    if settings.offline:
        return [], {}, None
    quick = replace(settings, retries=0, timeout=min(settings.timeout, 10.0), progress=False)
    with ThreadPoolExecutor(max(len(ids), 1)) as threads:
        plans = list(threads.map(lambda one: _plan(one, quick), ids))
    errors = {name: one for name, one in zip(ids, plans, strict=True) if isinstance(one, DatasetsRLError)}
    groups = [(one, *group) for one in plans if isinstance(one, planning.Plan) for group in _groups(one.assets)]
    urls = [url for _, asset, _ in groups for url in asset.urls]
    answers = dict(zip(urls, probe_all(urls, settings), strict=True))
    found = [
        Reachability(plan.id, asset.path, count, asset.size, tuple(answers[url] for url in asset.urls))
        for plan, asset, count in groups
    ]
    single = plans[0] if wanted in ids and isinstance(plans[0], planning.Plan) else None
    return found, errors, None if single is None else single.peak_bytes


def _first_id(source: str) -> str:
    ids = sources.get_source(source).ids()
    return f"{source}/{ids[0]}" if ids else ""


def _plan(dataset_id: str, settings: Settings) -> planning.Plan | DatasetsRLError:
    try:
        return planning.plan(dataset_id, force=True, settings=settings)
    except DatasetsRLError as error:
        return error


def _groups(assets: Iterable[Asset]) -> Iterator[tuple[Asset, int]]:
    """Yield the files to probe, each with the number of files that the probe stands for."""
    remote = [one for one in assets if any(not scheme_of(url).IN_PLACE for url in one.urls)]
    if len(remote) <= _PROBED_FILES:
        yield from ((one, 1) for one in remote)
        return
    by_hosts: dict[tuple[str, ...], list[Asset]] = {}
    for one in remote:
        by_hosts.setdefault(tuple(re.split(r"(?<=\w)/", url)[0] for url in one.urls), []).append(one)
    yield from ((group[0], len(group)) for group in by_hosts.values())
