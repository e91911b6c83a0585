"""From an exception to an exit code and three lines: what failed, why, what to do next."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from datasets_rl.errors import (
    BadArgument,
    ConversionFailed,
    DatasetsRLError,
    DiskFull,
    FetchFailed,
    IntegrityFailed,
    Locked,
    MissingDependency,
    NeedsYes,
    PreprocessFailed,
    UnknownId,
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
    kinds: tuple[type[DatasetsRLError], ...] = ()
    """The errors that end the command with it."""


EXIT_CODES = (
    ExitCode(0, "done, or there was nothing to do"),
    ExitCode(SOME_FAILED, "some of several items failed, or an error without a code of its own"),
    ExitCode(USAGE, "wrong usage: an option, an argument or an environment variable", (BadArgument,)),
    ExitCode(3, "unknown id, or no finished dataset there", (UnknownId,)),
    ExitCode(4, "network: no address gave the file", (FetchFailed,)),
    ExitCode(5, "integrity: bytes are not the ones expected", (IntegrityFailed,)),
    ExitCode(6, "not enough disk", (DiskFull,)),
    ExitCode(7, "an optional library is missing; the message has the pip line", (MissingDependency,)),
    ExitCode(
        8,
        "conversion: the upstream file breaks its own format, or a step of a recipe failed",
        (ConversionFailed, PreprocessFailed),
    ),
    ExitCode(9, "locked by another process", (Locked,)),
    ExitCode(10, "refused without --yes", (NeedsYes,)),
    ExitCode(INTERRUPTED, "interrupted with Ctrl-C; the same command continues"),
)


@dataclass(frozen=True, slots=True)
class Explained:
    """What the user reads about an error, a line each; a line may be empty."""

    kind: str
    """The exception's class, for programs."""
    what: str
    why: str
    hint: str
    code: int


def code_of(error: Exception) -> int:
    """Return the exit code of an error."""
    return next((row.code for row in EXIT_CODES if isinstance(error, row.kinds)), SOME_FAILED)


def explain(error: Exception) -> Explained:
    """Put an error into three lines."""
    what, why = _what_and_why(error)
    return Explained(type(error).__name__, what, why, _hint(error), code_of(error))


_PLACE = {
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}
"""What the system says where data cannot lie."""


def _hint(error: Exception) -> str:
    if isinstance(error, DatasetsRLError):
        return error.hint
    if isinstance(error, OSError) and error.errno in _PLACE:
        return "choose another place with --root, --out or RLDS_HOME, or mend its permissions"
    return "run it again with -vv to see where it happened"


def _what_and_why(error: Exception) -> tuple[str, str]:
    if isinstance(error, FetchFailed):
        return f"could not fetch {error.what}", "; ".join(f"{url}: {reason}" for url, reason in error.failures)
    if isinstance(error, IntegrityFailed):
        return _judged(error.what), "; ".join(error.problems)
    if isinstance(error, ConversionFailed):
        return f"{error.what} cannot be converted", "; ".join(error.problems)
    if isinstance(error, DatasetsRLError):
        # Messages name the thing before the first colon, and what is wrong with it behind.
        what, _, why = error.message.partition(": ")
        return what, why
    if isinstance(error, OSError) and error.strerror:
        return (f"{error.filename} cannot be used", error.strerror) if error.filename else (error.strerror, "")
    return f"{type(error).__name__}: {error}", ""


def _judged(what: str) -> str:
    # It is the name of a thing, or a sentence already.
    return what if " " in what and "/" not in what else f"{what} is not as expected"
