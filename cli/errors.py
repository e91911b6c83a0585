"""From an exception to an exit code and three lines: what failed, why, what to do next."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from datasets_rl.errors import (
    ConfirmationRequiredError,
    ConversionError,
    DatasetsRLError,
    DiskFullError,
    FetchError,
    IntegrityError,
    InvalidArgumentError,
    LockedError,
    MissingDependencyError,
    NotEnoughMemoryError,
    PreprocessError,
    UnknownIdError,
    UnknownKeyError,
)

__all__ = ["EXIT_CODES", "INTERRUPTED", "SOME_FAILED", "USAGE", "ExitCode", "Explained", "code_of", "explain"]

SOME_FAILED = 1
USAGE = 2
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class ExitCode:
    """A number that a script may rely on."""

    code: int
    meaning: str
    kinds: tuple[type[Exception], ...] = ()
    """The errors that end the command with it."""
    hint: str = "run the same command again with -vv to see where it failed"
    """What to do next about errors that bring no hint; ``{command}`` is the command that failed."""


EXIT_CODES = (
    ExitCode(0, "done, or there was nothing to do"),
    ExitCode(SOME_FAILED, "some of several items failed, or an error without a code of its own"),
    ExitCode(
        USAGE,
        "wrong usage: an option, an argument or an environment variable",
        (InvalidArgumentError,),
        "correct it and run the command again; {command} --help lists what it takes",
    ),
    ExitCode(
        3,
        "unknown id, or no finished dataset there",
        (UnknownIdError,),
        "rlds list --downloaded shows the datasets that are stored, rlds list every id",
    ),
    ExitCode(4, "network: no address gave the file", (FetchError,)),
    ExitCode(5, "integrity: bytes are not the ones expected", (IntegrityError,)),
    ExitCode(6, "not enough disk", (DiskFullError,)),
    ExitCode(7, "an optional library is missing; the message has the pip line", (MissingDependencyError,)),
    ExitCode(
        8,
        "conversion: the upstream file breaks its own format, or a step of a recipe failed",
        (ConversionError, PreprocessError),
        "correct what is named here and run the same command again; stored datasets are unchanged",
    ),
    ExitCode(9, "locked by another process", (LockedError,)),
    ExitCode(10, "refused without --yes", (ConfirmationRequiredError,)),
    ExitCode(
        11,
        "not enough memory",
        (NotEnoughMemoryError, MemoryError),
        "free memory or use a machine with more; {command} --help lists the options that make the work smaller",
    ),
    ExitCode(INTERRUPTED, "interrupted with Ctrl-C; the same command continues"),
)


@dataclass(frozen=True, slots=True)
class Explained:
    """What the user reads about an error, a line each; no line is empty."""

    kind: str
    """The exception's class, for programs."""
    what: str
    why: str
    hint: str
    code: int


def code_of(error: Exception) -> int:
    """Return the exit code of an error."""
    return _row(error).code


def explain(error: Exception, command: str = "") -> Explained:
    """Put an error into three lines.

    Args:
        error: The error.
        command: The command that failed, without ``rlds``.
    """
    row = _row(error)
    what, why = _what_and_why(error)
    hint = _hint(error) or row.hint.format(command=f"rlds {command}".rstrip())
    return Explained(type(error).__name__, what, why or row.meaning, hint, row.code)


def _row(error: Exception) -> ExitCode:
    return next((row for row in EXIT_CODES if isinstance(error, row.kinds)), EXIT_CODES[SOME_FAILED])


_PLACE = {
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}
"""The errors of the system for paths where data cannot be stored."""
_CLAUSE = re.compile(r": |; ")


def _hint(error: Exception) -> str:
    if isinstance(error, DatasetsRLError):
        return error.hint
    if isinstance(error, OSError) and error.errno == errno.ENOENT:
        folder = Path(_place(error)).parent
        return "check the path" if folder.is_dir() else f"create the folder {folder}, or choose another place"
    if isinstance(error, OSError) and error.errno in _PLACE:
        return "choose another place with --root, --out or RLDS_HOME, or fix its permissions"
    return ""


def _what_and_why(error: Exception) -> tuple[str, str]:
    if isinstance(error, FetchError):
        return f"could not fetch {error.what}", "; ".join(f"{url}: {reason}" for url, reason in error.failures)
    if isinstance(error, IntegrityError):
        return _judged(error.what), "; ".join(error.problems)
    if isinstance(error, ConversionError):
        return f"{error.what} cannot be converted", "; ".join(error.problems)
    if isinstance(error, (UnknownIdError, UnknownKeyError)) and " among " in error.message:
        what, _, known = error.message.partition(" among ")
        return what, f"it is not among {known}"
    if isinstance(error, DatasetsRLError):
        # Messages name the thing before the first colon or semicolon, and what is wrong with it after that; lines
        # below that show more of the same, for programs.
        what, *why = _CLAUSE.split(error.message.partition("\n")[0], maxsplit=1)
        return what, "".join(why)
    return _of_python(error)


def _of_python(error: Exception) -> tuple[str, str]:
    if isinstance(error, MemoryError):
        return "not enough memory", str(error) or "the process can allocate no more"
    if isinstance(error, OSError) and error.strerror:
        return f"{_place(error)} cannot be used", error.strerror
    return "the command failed", f"{type(error).__name__}: {error}"


def _place(error: OSError) -> str:
    """Return the path that the system refused; of one below a file, that file."""
    if error.errno == errno.ENOTDIR and isinstance(error.filename, str):
        return next((str(one) for one in Path(error.filename).parents if one.is_file()), error.filename)
    return os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else "a file or a connection"


def _judged(what: str) -> str:
    # It is the name of a thing, or a sentence already.
    return what if " " in what and "/" not in what else f"{what} is not as expected"
