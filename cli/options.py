"""Parts of several commands: the options that all have, sizes, ids and paths, and loops over several datasets."""

from __future__ import annotations

import dataclasses
import errno
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import typer

from datasets_rl.disk import expand_home
from datasets_rl.errors import (
    ConfirmationRequiredError,
    DatasetsRLError,
    InvalidArgumentError,
    LibraryError,
    MissingDependencyError,
    UnknownIdError,
)
from datasets_rl.progress import waiting
from datasets_rl.settings import Settings

from . import candidates
from .errors import SOME_FAILED, Explanation, explain
from .output import Printer
from .remedies import command_line

if TYPE_CHECKING:
    from datasets_rl.format.manifest import Manifest

T = TypeVar("T")

REPORTED = (DatasetsRLError, MemoryError, OSError)
"""Errors that are explained without a traceback."""

Ids = Annotated[
    list[str],
    typer.Argument(metavar="ID...", help="SOURCE/NAME, as `rlds list` shows.", autocompletion=candidates.all_ids),
]
StoredIds = Annotated[
    list[str],
    typer.Argument(
        metavar="ID...",
        help="Stored datasets, as `rlds list --downloaded` shows.",
        autocompletion=candidates.stored_ids,
    ),
]
Dataset = Annotated[
    str,
    typer.Argument(metavar="ID|PATH", help="SOURCE/NAME, or a dataset's folder.", autocompletion=candidates.stored_ids),
]
StoredOrMixture = Annotated[
    str,
    typer.Argument(
        metavar="ID|PATH",
        help="SOURCE/NAME, a dataset's folder, or a mixture's file.",
        autocompletion=candidates.stored_ids,
    ),
]
KnownOrMixture = Annotated[
    str,
    typer.Argument(
        metavar="ID|PATH",
        help="SOURCE/NAME, a dataset's folder, or a mixture's file.",
        autocompletion=candidates.all_ids,
    ),
]
_targets = typer.Argument(
    metavar="ID|PATH...", help="SOURCE/NAME, or a dataset's folder.", autocompletion=candidates.stored_ids
)
Targets = Annotated[list[str], _targets]
TargetsOrNone = Annotated[list[str] | None, _targets]
RayAddress = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Address of the Ray cluster: auto, or ray://HOST:PORT.")
]

_NO_MEMORY = re.compile(
    "allocate memory|not enough memory|can't start new thread|failed to map segment"
    "|error return without exception set"  # an extension with a failed allocation that did not say so
)

GLOBALS: dict[str, tuple[Any, Sequence[str], Mapping[str, Any], Any]] = {
    "json": (bool, ("--json",), {"help": "Print a single JSON document."}, False),
    "quiet": (bool, ("--quiet", "-q"), {"help": "Print only ids, paths or numbers, each in a line."}, False),
    "verbose": (
        int,
        ("--verbose", "-v"),
        {"count": True, "show_default": False, "help": "Print more details. -vv adds tracebacks."},
        0,
    ),
    "no_color": (bool, ("--no-color",), {"help": "Print no colors, as with NO_COLOR."}, False),
    "root": (Path | None, ("--root",), {"metavar": "DIR", "help": "Data folder, instead of RLDS_HOME."}, None),
    "version": (bool, ("--version", "-V"), {"help": "Print the version."}, False),
}
"""The options that are accepted before and after a command's name: by parameter its type, names, settings, default."""


@dataclass
class Shell:
    """A run of ``rlds`` with words, printer and settings: the first argument of every command."""

    argv: Sequence[str]
    command: str = ""
    printer: Printer = field(default_factory=Printer)
    verbose: int = 0
    root: Path | None = None
    version: bool = False
    interrupted: str = ""
    """The last actions of an interrupted command."""

    @cached_property
    def settings(self) -> Settings:
        """The settings of the environment, with precedence for the command line."""
        settings = Settings.from_env()
        home = settings.home if self.root is None else expand_home(self.root).absolute()
        return dataclasses.replace(settings, home=home, progress=settings.progress and not self.printer.quiet)

    def check_home(self) -> None:
        """Refuse a data folder that is a file or is below a file, which cannot hold datasets.

        Raises:
            NotADirectoryError: If the data folder is such a path.
        """
        home = self.settings.home
        nearest = next((one for one in (home, *home.parents) if one.exists()), home)
        if nearest.exists() and not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(nearest))

    def import_torch(self) -> None:
        """Import PyTorch, and print a line on a terminal if the import takes seconds, as on a busy machine."""
        with waiting("importing PyTorch", show=self.settings.progress and sys.stderr.isatty()):
            importlib.import_module("tensordict")

    @property
    def debug(self) -> bool:
        """Whether tracebacks are wanted."""
        return self.verbose > 1 or os.environ.get("RLDS_DEBUG", "") not in {"", "0"}

    def take(self, *, json: bool, quiet: bool, verbose: int, no_color: bool, root: Path | None, version: bool) -> None:
        """Add global options from before or after the name of the command."""
        self.printer.json |= json
        self.printer.quiet |= quiet
        self.printer.no_color |= no_color
        self.verbose += verbose
        self.root = root or self.root
        self.version |= version

    def explained(self, error: Exception) -> Explanation:
        """Return the explanation of an error."""
        return explain(error, self.command, self.root)

    def rlds(self, *words: object) -> str:
        """Return a command line with these words, which repeats a given ``--root``."""
        return command_line(*words, root=self.root)

    def detail(self, text: str) -> None:
        """Say something that only -v wants to know."""
        if self.verbose:
            self.printer.note(text)


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What became of an item of several."""

    item: str
    value: T | None = None
    error: Explanation | None = None

    @property
    def code(self) -> int:
        """The exit code of this item."""
        return 0 if self.error is None else self.error.code

    def document(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return the item for a JSON document.

        Args:
            defaults: The attributes of the value, or of its manifest, and their values for an item that failed.
        """
        manifest = getattr(self.value, "manifest", None)
        found = {name: getattr(self.value, name, getattr(manifest, name, other)) for name, other in defaults.items()}
        return {"id": self.item, **found, "error": self.error}


def make_engine(name: str, address: str) -> Any:
    """Return the engine of this name, None for this machine.

    Raises:
        InvalidArgumentError: If an address is given for an engine that has none.
        MissingDependencyError: If the engine's library is not installed.
    """
    if name == "local":
        if address:
            raise InvalidArgumentError(f"--address {address} is for a cluster", hint="add --engine ray")
        return None
    # A dataset of a single part starts no engine, and the error about a missing Ray must not depend on that.
    if importlib.util.find_spec("ray") is None:
        raise MissingDependencyError("ray", "ray", "--engine ray")
    from datasets_rl.build.engines.ray import RayEngine

    return RayEngine(address or None)


def apply_to_each(shell: Shell, items: Iterable[str], function: Callable[[str], T]) -> list[Outcome[T]]:
    """Apply a function to every item, also after failures. Each failure is reported at once."""
    outcomes: list[Outcome[T]] = []
    for item in dict.fromkeys(items):
        try:
            with convert_memory_errors():
                outcomes.append(Outcome(item, value=function(item)))
        except BrokenPipeError:
            raise
        except REPORTED as error:
            if shell.debug:
                shell.printer.traceback(error)
            explanation = shell.explained(error)
            shell.printer.failed(shell.command, explanation, document=False)
            outcomes.append(Outcome(item, error=explanation))
    return outcomes


@contextmanager
def convert_memory_errors() -> Iterator[None]:
    """Turn the errors with which torch, threads, libraries and the system report exhausted memory into Python's own.

    Raises:
        MemoryError: If the block fails to allocate a tensor, a thread, a library or a mapped file.
    """
    try:
        yield
    except (ImportError, RuntimeError, SystemError) as error:
        if (isinstance(error, DatasetsRLError) and not isinstance(error, LibraryError)) or not _NO_MEMORY.search(
            str(error)
        ):
            raise
        raise MemoryError(str(error).rpartition("DefaultCPUAllocator: ")[2]) from error
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise MemoryError(f"{error.strerror}: {error.filename or 'memory of the process'}") from error


def ask_to_confirm(question: str) -> bool:
    """Ask a question on the terminal, and return whether the answer is yes.

    Raises:
        ConfirmationRequiredError: If no terminal is connected.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfirmationRequiredError(question)
    # Not input(), nor what is built on input(): these write to stdout, where only data goes.
    sys.stderr.write(f"{question}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def combined_exit_code(codes: Sequence[int]) -> int:
    """Return the exit code for several items, each with a code."""
    if len(codes) == 1:
        return codes[0]
    return SOME_FAILED if any(codes) else 0


_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_UNITS["ti"] = 1 << 40


def read_size(text: str) -> int:
    """Read a number of bytes in the words of users: ``500MB``, ``2GiB``, ``1.5g``, ``4096``.

    Raises:
        InvalidArgumentError: If the text is not a size, or the size is not above 0.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?i?)b?\s*", text.lower())
    if match is None or match[2] not in _UNITS or not (size := int(float(match[1]) * _UNITS[match[2]])):
        raise InvalidArgumentError(
            f"{text!r} is not a size, expected a number of bytes above 0, as in 500MB, 2GiB or 4096"
        )
    return size


def id_or_folder(text: str) -> str | Path:
    """Return a known id as text, and any other word as the path of a dataset's folder.

    A known id is never read as a folder, even if a folder of that name is in the working directory.

    Raises:
        InvalidArgumentError: If the word is empty.
    """
    if not text.strip():
        raise InvalidArgumentError("an empty word is not a dataset, expected SOURCE/NAME, or a dataset's folder")
    from datasets_rl import store

    return store.id_or_path(text)


def dataset_arguments(shell: Shell, text: str) -> dict[str, Any]:
    """Return the arguments of `store.locate` and `verification.verify` for an id or a path.

    Raises:
        InvalidArgumentError: If the word is empty.
        NotADatasetError: If the word is a path that does not exist.
    """
    from datasets_rl import sources

    wanted = id_or_folder(text)
    if isinstance(wanted, Path):
        return {"dataset": wanted, "settings": shell.settings}
    # With a root the library looks there, and at no folder of this name beside us.
    root = shell.settings.home / sources.find(wanted).source
    return {"dataset": wanted, "root": root, "settings": shell.settings}


def write_file(path: Path, content: bytes, *, force: bool) -> None:
    """Write a file that a command makes. The same command run again finds its own file.

    Raises:
        InvalidArgumentError: If the file exists with other content and `force` is not set, or would be inside a version.
    """
    from datasets_rl import disk

    file = expand_home(path)
    disk.check_outside_versions(file)
    if file.exists() and not force and not disk.has_content(file, content):
        raise InvalidArgumentError(f"{path} is not replaced: it exists", hint="add --force to overwrite it")
    disk.write_bytes(file, content)


def name_of(shell: Shell, folder: Path, manifest: Manifest) -> str:
    """Return the id under which a dataset is shown: the id of its place, else the id in its manifest."""
    from datasets_rl.store.find import shown_id

    return shown_id(folder, manifest.id, settings=shell.settings)


def is_id(text: str) -> bool:
    """Return whether a word is an id."""
    from datasets_rl import sources

    try:
        return bool(sources.find(text).id)
    except (InvalidArgumentError, UnknownIdError):
        return False


def dataset_folders(shell: Shell, text: str) -> list[Path]:
    """Return the folder of a stored dataset, or the folders of the datasets in a mixture's file.

    Raises:
        NotADatasetError: If a dataset is not stored.
    """
    from datasets_rl.store.find import locate

    if text.endswith(".toml"):
        from datasets_rl.datasets.open_mixture import load_mixture

        mixture = load_mixture(text, download=False, home=shell.settings.home)
        return [mixture[number].data_path for number in range(len(mixture.names))]
    return [locate(**dataset_arguments(shell, text))]


def read_keys(words: Sequence[str]) -> list[tuple[str, ...]] | None:
    """Return the keys of an option that is given several times, or once with commas. None without the option.

    Raises:
        InvalidArgumentError: If a name is empty.
    """
    from datasets_rl.ted.keys import as_key

    return [as_key(name.strip()) for word in words for name in word.split(",")] or None
