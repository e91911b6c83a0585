"""Settings from environment variables and from files: the folder of the data, and the use of the network.

    <project>/rlds.toml                  the project file of the working directory, or of the project around it
    ~/.config/datasets-rl/config.toml    the user file, or the file in RLDS_CONFIG

An option of the command line takes precedence over a variable, a variable over the project file, and the project file
over the user file. A project may be a clone of what other people published. The places of a project file, where data
are stored and from where data are fetched, count only once the user has trusted that file (`trust_project`). Both files
have the keys of `SETTINGS`:

    home = "/data/rl"
    jobs = 8

    [mirrors]
    d4rl = ["https://lab.example/d4rl"]
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from datasets_rl import disk
from datasets_rl.errors import (
    Call,
    InvalidArgumentError,
    NotEnoughMemoryError,
    NotWritableError,
    Remedy,
    UntrustedSettingsWarning,
)

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})
PROJECT_FILE = "rlds.toml"
"""The name of the project file."""
NEED_TRUST = ("home", "mirrors")
"""The settings of a project file that count only once the user has trusted the file."""
_PROJECT_MARKS = (PROJECT_FILE, "pyproject.toml", ".git")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that are not arguments of a call, read once and passed down.

    >>> from pathlib import Path
    >>> from datasets_rl import Settings
    >>> Settings(home=Path("/data/rl")).home.name
    'rl'
    """

    home: Path
    """RLDS_HOME: the folder that contains the folders of all sources. By default the user's data folder."""
    offline: bool = False
    """RLDS_OFFLINE: disables all network requests."""
    timeout: float = 30.0
    """RLDS_TIMEOUT: seconds without a byte, or without complete headers, after which a connection counts as stalled."""
    min_rate: int = 100
    """RLDS_MIN_RATE: bytes per second, on average over `timeout` seconds of waiting, below which a server counts as too
    slow. 0 sets no limit."""
    retries: int = 5
    """RLDS_MAX_RETRIES: the number of further attempts at an address after a transient failure."""
    jobs: int = 4
    """RLDS_JOBS: the number of files, and of ranges of a large file, that are fetched at once."""
    image_cache: int = 256
    """RLDS_IMAGE_CACHE: megabytes of decoded PNG and JPEG images that each opened dataset keeps in memory, or 0 to
    keep no images."""
    mirrors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """RLDS_MIRRORS: for each source, base addresses that are tried before the upstream's addresses, as in
    ``d4rl=https://lab.example/d4rl,file:///mnt/d4rl;minari=https://lab.example/minari``."""
    progress: bool = True
    """RLDS_NO_PROGRESS disables progress bars and lines."""
    lock: Path | None = None
    """RLDS_LOCK: the lock that every dataset must fit that `load` opens. None without a lock."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, files: Sequence[Path] | None = None) -> Settings:
        """Read the settings from environment variables and, where a variable is not set, from the files.

        Args:
            env: The variables. By default the variables of the process.
            files: The files, in the order of precedence. By default the files of `config_files`.

        Raises:
            InvalidArgumentError: If variables or files have invalid values. The error names all of them.
        """
        return cls(**{key: one.value for key, one in setting_values(env, files).items()})


@dataclass(frozen=True, slots=True)
class SettingValue:
    """The value of a setting, and where the value is from."""

    value: Any
    origin: str
    """A variable, a file with a line, or "default"."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as users write it: a key in the files, and an environment variable."""

    key: str
    """The key in the files, and the field of `Settings`."""
    variable: str
    expected: str
    """The valid values, for messages."""
    parse: Callable[[Any], Any]
    """Converts a value of a file, or a text. Raises `ValueError` for an invalid value."""
    from_variable: Callable[[str], Any] | None = None
    """Converts the text of the variable, if that differs from the value in a file."""
    expected_variable: str = ""


def _parse_path(value: Any) -> Path:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError(value)
    return disk.expand_home(value).absolute()


def _parse_flag(value: Any) -> bool:
    text = str(value).strip().lower() if isinstance(value, (bool, str, int)) else "?"
    if text not in _TRUE | _FALSE:
        raise ValueError(value)
    return text in _TRUE


def _parse_seconds(value: Any) -> float:
    number = float(value) if not isinstance(value, bool) and isinstance(value, (int, float, str)) else math.nan
    if not 0 < number < math.inf:
        raise ValueError(value)
    return number


def _integer_parser(minimum: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        text = str(value).strip() if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= minimum):
            raise ValueError(value)
        return int(text)

    return parse


def _parse_mirrors(value: Any) -> Mapping[str, tuple[str, ...]]:
    if isinstance(value, str):
        parts = [piece.partition("=") for piece in map(str.strip, value.split(";")) if piece]
        value = {source.strip(): urls.split(",") for source, _, urls in parts}
    if not isinstance(value, Mapping):
        raise ValueError(value)  # noqa: TRY004 - an invalid value, as of the other parsers
    return {source: parse_mirror(source, urls) for source, urls in value.items()}


def parse_mirror(source: str, urls: Any) -> tuple[str, ...]:
    """Return the mirrors of a source: base addresses, as a list, or as a text with commas.

    Raises:
        ValueError: If no address is given, or an address has no scheme.
    """
    listed = urls.split(",") if isinstance(urls, str) else urls
    addresses = tuple(str(url).strip() for url in listed if str(url).strip()) if isinstance(listed, list) else ()
    if not source or not addresses or not all(":" in url for url in addresses):
        raise ValueError(f"{source}={','.join(addresses)}")
    return addresses


_FLAG = "0 or 1"
SETTINGS: Mapping[str, Setting] = {
    one.key: one
    for one in (
        Setting("home", "RLDS_HOME", "the path of a folder", _parse_path),
        Setting("offline", "RLDS_OFFLINE", _FLAG, _parse_flag),
        Setting("timeout", "RLDS_TIMEOUT", "a number greater than 0", _parse_seconds),
        Setting("min_rate", "RLDS_MIN_RATE", "an integer of at least 0", _integer_parser(0)),
        Setting("retries", "RLDS_MAX_RETRIES", "an integer of at least 0", _integer_parser(0)),
        Setting("jobs", "RLDS_JOBS", "an integer of at least 1", _integer_parser(1)),
        Setting("image_cache", "RLDS_IMAGE_CACHE", "an integer of at least 0", _integer_parser(0)),
        Setting(
            "mirrors",
            "RLDS_MIRRORS",
            "a table of SOURCE = [URL, ...]",
            _parse_mirrors,
            expected_variable="SOURCE=URL[,URL...] parts joined by ';'",
        ),
        Setting("progress", "RLDS_NO_PROGRESS", _FLAG, _parse_flag, lambda text: not _parse_flag(text)),
        Setting("lock", "RLDS_LOCK", "the path of a file", _parse_path),
    )
}
"""Every setting by key."""


def setting_values(
    env: Mapping[str, str] | None = None, files: Sequence[Path] | None = None
) -> dict[str, SettingValue]:
    """Return the value of every setting with the origin of the value. The arguments are as for `Settings.from_env`.

    Raises:
        InvalidArgumentError: If variables or files have invalid values. The error names all of them.
    """
    env = os.environ if env is None else env
    problems: list[str] = []
    values: dict[str, SettingValue] = {}
    project = project_file() if files is None and project_file() != user_file(env) else None
    for path in reversed(config_files(env) if files is None else files):
        values |= _file_values(path, problems, _ignored_keys(path) if path == project else ())
    for one in SETTINGS.values():
        text = env.get(one.variable, "")
        if text.strip():
            try:
                value = (one.from_variable or one.parse)(text)
            except ValueError:
                problems.append(f"{one.variable} is {text!r}, expected {one.expected_variable or one.expected}")
            else:
                values[one.key] = SettingValue(value, one.variable)
    if problems:
        single = len(problems) == 1 and problems[0].startswith("RLDS_")
        raise InvalidArgumentError(
            f"{'' if single else 'settings are not valid: '}{'; '.join(problems)}",
            hint="correct the environment variables, and the lines of files, that are named here",
        )
    if "home" not in values:
        values["home"] = SettingValue(_default_home(), _DEFAULT)
    defaults = Settings(home=values["home"].value)
    return {key: values.get(key) or SettingValue(getattr(defaults, key), _DEFAULT) for key in SETTINGS}


_DEFAULT = "default"


def user_file(env: Mapping[str, str] | None = None) -> Path:
    """Return the path of the user file, which need not exist."""
    named = (os.environ if env is None else env).get("RLDS_CONFIG", "")
    if named.strip():
        return disk.expand_home(named).absolute()
    import platformdirs  # takes as long to import as the rest of `import datasets_rl`

    return Path(platformdirs.user_config_dir("datasets-rl", appauthor=False), "config.toml")


def project_file(folder: Path | None = None) -> Path:
    """Return the path of the project file, which need not exist.

    The file is in the root of the project around a folder: the nearest folder, from this folder upwards, with an
    rlds.toml, a pyproject.toml or a .git. Outside of projects the file is in the folder itself, so that files that
    others leave in shared folders above have no effect.

    Args:
        folder: The folder. By default the working directory.
    """
    start = _working_folder() if folder is None else folder.absolute()
    root = next(
        (one for one in (start, *start.parents) if any(os.path.exists(one / mark) for mark in _PROJECT_MARKS)),  # noqa: PTH110 - False without access
        start,
    )
    return root / PROJECT_FILE


def trusted_file() -> Path:
    """Return the path of the user's list of trusted project files: for each path, the SHA-256 of the content."""
    import platformdirs

    return Path(platformdirs.user_config_dir("datasets-rl", appauthor=False), "trusted.json")


def trusted_files() -> dict[str, str]:
    """Return the trusted project files, each with the SHA-256 of the content that the user has trusted."""
    with suppress(OSError, ValueError, RecursionError):
        listed = json.loads(trusted_file().read_bytes())
        return {path: digest for path, digest in listed.items() if isinstance(digest, str)}
    return {}


def untrusted_keys(path: Path) -> list[str]:
    """Return which of `NEED_TRUST` a project file sets, unless the user has trusted the file with this content."""
    try:
        content = path.read_bytes()
        keys = [key for key in parse_document(content.decode("utf-8")) if key in NEED_TRUST]
    except (OSError, ValueError):
        return []
    is_trusted = keys and trusted_files().get(trust_key(path)) == hashlib.sha256(content).hexdigest()
    return [] if is_trusted else keys


def trust_key(path: Path) -> str:
    """Return the absolute path by which a project file is trusted."""
    return str(disk.real_path(disk.expand_home(path)))


def trust_project(path: Path | str | None = None) -> Path:
    """Trust a project file with the present content. Once the content changes, the file has to be trusted again.

    Args:
        path: The file, or the folder of the project. By default the project of the working directory.

    Returns:
        The path of the file.

    Raises:
        InvalidArgumentError: If there is no such file.
    """
    file = _project_file_at(path)
    try:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise InvalidArgumentError(
            f"{file} cannot be read: {error.strerror}", hint="name a file of settings"
        ) from error
    _write_trusted(trusted_files() | {trust_key(file): digest})
    return file


def revoke_trust(path: Path | str | None = None) -> Path:
    """Trust a project file no longer. The file need not exist.

    Args:
        path: The file, or the folder of the project. By default the project of the working directory.

    Returns:
        The path of the file.
    """
    file = _project_file_at(path)
    _write_trusted({name: digest for name, digest in trusted_files().items() if name != trust_key(file)})
    return file


def _project_file_at(path: Path | str | None) -> Path:
    if path is None:
        return project_file()
    path = disk.expand_home(path).absolute()
    return path / PROJECT_FILE if path.is_dir() else path


def _write_trusted(trusted: dict[str, str]) -> None:
    file = trusted_file()
    with file_errors(file, "fix its permissions. The list of trusted files has no other place"):
        file.parent.mkdir(parents=True, exist_ok=True)
        disk.write_json(file, trusted)


@contextmanager
def file_errors(file: Path, hint: str) -> Iterator[None]:
    """Convert the errors of the system about a file of settings, which is not in the folder of the data.

    Raises:
        NotWritableError: If the file cannot be used, with the hint of the argument.
    """
    try:
        yield
    except NotWritableError as error:
        error.hint = hint
        raise
    except OSError as error:
        raise NotWritableError(file, error.strerror or str(error), hint=hint) from error


def _ignored_keys(path: Path) -> list[str]:
    keys = untrusted_keys(path)
    if keys:
        verb = "is" if len(keys) == 1 else "are"
        text = f"{path} is not trusted: its {' and '.join(keys)} {verb} ignored"
        warnings.warn(
            UntrustedSettingsWarning(text, hint=Remedy("{} trusts it", Call("settings.trust_project", path))),
            stacklevel=4,
        )
    return keys


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except OSError:  # deleted
        return Path(os.sep)


def config_files(env: Mapping[str, str] | None = None) -> list[Path]:
    """Return the files that exist, in the order of precedence."""
    return [path for path in (project_file(), user_file(env)) if os.path.isfile(path)]  # noqa: PTH113 - see above


def _file_values(path: Path, problems: list[str], ignored: Sequence[str]) -> dict[str, SettingValue]:
    """Return the settings in a file, except for ignored settings. Problems name the file and the line."""
    try:
        text = path.read_text("utf-8")
        document = parse_document(text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or f"the file is not valid TOML: {error}"
        problems.append(f"{path}: {reason}")
        return {}
    values: dict[str, SettingValue] = {}
    for key in ignored:
        document.pop(key, None)
    for key, value in document.items():
        place = f"{path}:{line_of(text, key)}"
        if key not in SETTINGS:
            near = difflib.get_close_matches(key.lower().removeprefix("rlds_"), SETTINGS, n=1, cutoff=0.5)
            meant = f" (did you mean {near[0]}?)" if near else f", expected one of {', '.join(SETTINGS)}"
            problems.append(f"{place}: there is no setting {key!r}{meant}")
            continue
        try:
            parsed = SETTINGS[key].parse(_relative_to(path.parent, value) if key in {"home", "lock"} else value)
        except ValueError:
            problems += _bad_values(path, text, key, value)
        else:
            values[key] = SettingValue(parsed, place)
    return values


def _bad_values(path: Path, text: str, key: str, value: Any) -> Iterator[str]:
    """Yield the problems of a value: of a table, each invalid entry."""
    bad = []
    for source, urls in value.items() if key == "mirrors" and isinstance(value, Mapping) else ():
        try:
            parse_mirror(source, urls)
        except ValueError:
            bad.append(source)
            line = line_of(text, source, table=key)
            yield f"{path}:{line}: {key}.{source} is {urls!r}, expected a list of addresses, as in https://lab/d4rl"
    if not bad:
        yield f"{path}:{line_of(text, key)}: {key} is {value!r}, expected {SETTINGS[key].expected}"


def _relative_to(folder: Path, value: Any) -> Any:
    """Return the path in a file as an absolute path: paths are relative to the folder of the file."""
    return str(folder / disk.expand_home(value)) if isinstance(value, str) and value.strip() else value


def parse_document(text: str) -> dict[str, Any]:
    """Parse the text of a configuration file.

    Raises:
        ValueError: If the text is not valid TOML.
    """
    # Most processes have no such file, and need no parser.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("the file is nested too deep") from error


def line_of(text: str, key: str, *, table: str = "") -> int:
    """Return the number of the line of a configuration file that sets a key, or 1 if not found.

    Args:
        text: The text of the file.
        key: The key.
        table: The table that the key is in. By default the top level.
    """
    name = rf"[\"']?{re.escape(key)}[\"']?"
    inside = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*[\"']?([^\"'\].]+)", line):
            inside = header[1].strip()
            if not table and inside == key:
                return number
        elif re.match(
            rf"\s*{name}\s*[=.]" if inside == table else rf"\s*{re.escape(table or '.')}\s*[.=].*{name}", line
        ):
            return number
    return 1


def _default_home() -> Path:
    # Imported here, because the import takes as long as the rest of `import datasets_rl`, and RLDS_HOME is often set.
    import platformdirs

    return Path(platformdirs.user_data_dir("datasets-rl", appauthor=False))


def require_memory(needed: int, purpose: str, *, hint: str | Remedy = "") -> None:
    """Check, before any allocation, that an operation can fit into the memory of this machine.

    Args:
        needed: A lower bound of the bytes that the operation holds at once.
        purpose: The operation with the size, for messages, as in "cat_frames with N = 1000".
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
    """Return the size of the memory of this machine in bytes, or infinity if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return math.inf
