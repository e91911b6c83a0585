"""Fixtures of the download tests: a file with the signature of HDF5, short timeouts, and retries without pauses."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from datasets_rl.fetch import Asset, Fetched, fetch, plan
from datasets_rl.fetch.parallel import Limiter
from datasets_rl.settings import Settings

MAGIC = b"\x89HDF\r\n\x1a\n"


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    """Remove the pauses between retries, and ignore proxies of the environment."""
    monkeypatch.setattr(plan, "_FIRST_PAUSE", 0.001)
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture(scope="session")
def data() -> bytes:
    """300 kB of random bytes after the signature of an HDF5 file."""
    return MAGIC + random.Random(7).randbytes(300_000)


@pytest.fixture(scope="session")
def sha256(data) -> str:
    """The SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def settings(tmp_path) -> Settings:
    """Settings with a timeout that a busy machine keeps, and three retries."""
    return Settings(home=tmp_path, timeout=3.0, retries=3, progress=False)


@pytest.fixture
def folder(tmp_path) -> Path:
    """The folder that `get` downloads to."""
    return tmp_path / "files"


Get = Callable[..., Fetched]


@pytest.fixture
def get(folder, settings) -> Get:
    """A function that downloads an HDF5 file from one or more addresses into `folder`, and returns a `Fetched`."""

    def get(urls: str | Sequence[str], *, hash_check: bool = True, limit_rate: int | None = None, **known) -> Fetched:
        urls = (urls,) if isinstance(urls, str) else tuple(urls)
        asset = Asset(urls, **{"path": "a.hdf5", "magic": MAGIC, "kind": "HDF5", **known})
        return fetch([asset], folder, settings=settings, hash_check=hash_check, limiter=Limiter(limit_rate))[0]

    return get


@pytest.fixture
def names(folder) -> Callable[[], list[str]]:
    """A function that lists the relative paths of all files below `folder`."""
    return lambda: sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
