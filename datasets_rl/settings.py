"""Settings from environment variables: the folder of the data, and the use of the network."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType

from datasets_rl.errors import InvalidArgumentError, NotEnoughMemoryError
from datasets_rl.remedy import Remedy

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that are not arguments of a call; read once and passed down."""

    home: Path
    """RLDS_HOME: the folder that contains the folders of all sources; by default the user's data folder."""
    offline: bool = False
    """RLDS_OFFLINE: disables all network requests."""
    timeout: float = 30.0
    """RLDS_TIMEOUT: seconds without a byte, or without complete headers, after which a connection counts as stalled."""
    min_rate: int = 100
    """RLDS_MIN_RATE: bytes per second, on average over `timeout` seconds of waiting, below which a server counts as too
    slow; 0 sets no limit."""
    retries: int = 5
    """RLDS_MAX_RETRIES: the number of further attempts at one address after a transient failure."""
    jobs: int = 4
    """RLDS_JOBS: the number of files, and of ranges of one large file, that are fetched at once."""
    image_cache: int = 256
    """RLDS_IMAGE_CACHE: megabytes of decoded images that each opened dataset with encoded images keeps in memory; 0
    keeps none."""
    mirrors: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """RLDS_MIRRORS: for each source, base addresses that are tried before those of the upstream, as in
    ``d4rl=https://lab.example/d4rl,file:///mnt/d4rl;minari=https://lab.example/minari``."""
    progress: bool = True
    """RLDS_NO_PROGRESS disables progress bars and lines."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from environment variables.

        Raises:
            InvalidArgumentError: If variables have invalid values; the error names all of them.
        """
        env = os.environ if env is None else env
        problems: list[str] = []
        home = env.get("RLDS_HOME", "")
        settings = cls(
            home=Path(home).expanduser().absolute() if home else _default_home(),
            offline=_read_flag(env, "RLDS_OFFLINE", problems),
            timeout=_read_seconds(env, "RLDS_TIMEOUT", 30.0, problems),
            min_rate=_read_integer(env, "RLDS_MIN_RATE", 100, problems, minimum=0),
            retries=_read_integer(env, "RLDS_MAX_RETRIES", 5, problems, minimum=0),
            jobs=_read_integer(env, "RLDS_JOBS", 4, problems, minimum=1),
            image_cache=_read_integer(env, "RLDS_IMAGE_CACHE", 256, problems, minimum=0),
            mirrors=_parse_mirrors(env.get("RLDS_MIRRORS", ""), problems),
            progress=not _read_flag(env, "RLDS_NO_PROGRESS", problems),
        )
        if problems:
            raise InvalidArgumentError("; ".join(problems), hint="correct the environment variables named here")
        return settings


def _default_home() -> Path:
    # Imported here, because the import takes as long as the rest of `import datasets_rl`, and RLDS_HOME is often set.
    import platformdirs

    return Path(platformdirs.user_data_dir("datasets-rl", appauthor=False))


def _read_flag(env: Mapping[str, str], name: str, problems: list[str]) -> bool:
    value = env.get(name, "").strip().lower()
    if value not in _TRUE | _FALSE:
        problems.append(f"{name} is {env[name]!r}; expected 0 or 1")
    return value in _TRUE


def _read_seconds(env: Mapping[str, str], name: str, default: float, problems: list[str]) -> float:
    text = env.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < math.inf:
        problems.append(f"{name} is {text!r}; expected a number greater than 0")
        return default
    return value


def require_memory(needed: int, purpose: str, *, hint: str | Remedy = "") -> None:
    """Check, before any allocation, that an operation can fit into the memory of this machine.

    Args:
        needed: A lower bound of the bytes that the operation holds at once.
        purpose: The operation with its size, for messages, as in "cat_frames with N = 1000".
        hint: What to do next.

    Raises:
        NotEnoughMemoryError: If the machine has less memory.
    """
    available = memory_bytes()
    if needed > available:
        raise NotEnoughMemoryError(
            f"{purpose} needs {needed:,} bytes of memory: this machine has {available:,}", hint=hint
        )


@cache
def memory_bytes() -> float:
    """Return the size of the memory of this machine in bytes; infinity if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return math.inf


def _read_integer(env: Mapping[str, str], name: str, default: int, problems: list[str], *, minimum: int) -> int:
    text = env.get(name, "").strip()
    if text and not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= minimum):
        problems.append(f"{name} is {text!r}; expected an integer of at least {minimum}")
    return default if not text or problems else int(text)


def _parse_mirrors(text: str, problems: list[str]) -> Mapping[str, tuple[str, ...]]:
    mirrors: dict[str, tuple[str, ...]] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        source, _, urls = part.partition("=")
        addresses = tuple(url.strip() for url in urls.split(",") if url.strip())
        if not source.strip() or not addresses or not all(":" in url for url in addresses):
            problems.append(f"RLDS_MIRRORS has {part!r}; expected SOURCE=URL[,URL...] parts joined by ';'")
        else:
            mirrors[source.strip()] = addresses
    return MappingProxyType(mirrors)
