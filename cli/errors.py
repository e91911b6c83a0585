"""The exit code of an exception, and its explanation in up to three lines: what failed, why, and what to do next."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from functools import partial
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
    NotADatasetError,
    NotEnoughMemoryError,
    PreprocessError,
    PushError,
    TimedOutError,
    UnknownIdError,
    UnknownKeyError,
)

from .remedies import command_line, spell_action

SOME_FAILED = 1
USAGE = 2
NOT_IDENTIFIED = 12
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class ExitCode:
    """Exit code of a command, the same in all versions."""

    code: int
    meaning: str
    kinds: tuple[type[Exception], ...] = ()
    """The errors for which a command ends with this code."""
    hint: str = "run the same command again with -vv to see the place of the failure"
    """What to do next about errors without a remedy. ``{command}`` is the command that failed, ``{rlds}`` a command
    line before the name of a command."""


EXIT_CODES = (
    ExitCode(0, "done, or there was nothing to do"),
    ExitCode(SOME_FAILED, "some of several items failed, or an error without a separate code"),
    ExitCode(
        USAGE,
        "wrong usage: an option, an argument or an environment variable",
        (InvalidArgumentError,),
        "correct the arguments and run the command again. {command} --help lists the options",
    ),
    ExitCode(
        3,
        "unknown id, or no finished dataset there",
        (UnknownIdError,),
        "{rlds} list --downloaded shows the datasets that are stored, {rlds} list every id",
    ),
    ExitCode(4, "network: no address gave the file, or the hub did not take it", (FetchError, PushError)),
    ExitCode(5, "integrity: bytes are not the expected bytes", (IntegrityError,)),
    ExitCode(6, "not enough disk", (DiskFullError,)),
    ExitCode(7, "an optional library is missing (the message has the pip line)", (MissingDependencyError,)),
    ExitCode(
        8,
        "conversion: the upstream file breaks its own format, or a step of a recipe failed",
        (ConversionError, PreprocessError),
        "correct what is named here and run the same command again. Stored datasets are unchanged",
    ),
    ExitCode(9, "locked by another process", (LockedError, TimedOutError)),
    ExitCode(10, "refused without --yes", (ConfirmationRequiredError,), "add --yes"),
    ExitCode(
        11,
        "not enough memory",
        (NotEnoughMemoryError, MemoryError),
        "free memory or use a machine with more. {command} --help lists the options that make the work smaller",
    ),
    ExitCode(NOT_IDENTIFIED, "no stored dataset holds an episode of the dataset that `rlds identify` looked up"),
    ExitCode(INTERRUPTED, "interrupted with Ctrl-C (the same command continues)"),
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of an error."""

    kind: str
    """The name of the exception's class."""
    what: str
    """What failed."""
    why: str
    """The reason. Empty if `what` names the reason."""
    hint: str
    """What to do next."""
    code: int
    """The exit code."""


def exit_code_of(error: Exception) -> int:
    """Return the exit code of an error."""
    return _exit_code_row(error).code


def explain(error: Exception, command: str = "", root: Path | None = None) -> Explanation:
    """Return the explanation of an error.

    Args:
        error: The error.
        command: The name of the command that failed. Empty if no command was running.
        root: The value of ``--root``, which the commands in a hint repeat.
    """
    row = _exit_code_row(error)
    what, why = _what_and_why(error)
    default = row.hint.format(rlds=command_line(root=root), command=f"rlds {command}".rstrip())
    return Explanation(type(error).__name__, what, why, _hint_of(error, root) or default, row.code)


def _exit_code_row(error: Exception) -> ExitCode:
    return next((row for row in EXIT_CODES if isinstance(error, row.kinds)), EXIT_CODES[SOME_FAILED])


DISK_FULL = exit_code_of(DiskFullError("", 0, 0))


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
"""The errors of the system for paths at which data cannot be stored."""


def _hint_of(error: Exception, root: Path | None) -> str:
    if isinstance(error, DatasetsRLError):
        return error.remedy.text_with(partial(spell_action, root=root))
    if isinstance(error, OSError) and error.errno == errno.ENOENT:
        folder = Path(_refused_path(error)).parent
        return "check the path" if folder.is_dir() else f"create the folder {folder}, or choose another place"
    if isinstance(error, OSError) and error.errno in _PLACE:
        return "choose another place with --root, --out or RLDS_HOME, or fix its permissions"
    return ""


def _what_and_why(error: Exception) -> tuple[str, str]:
    what, why = _explain_python_error(error)
    match error:
        case FetchError():
            what = f"could not fetch {error.name}"
            why = "; ".join(f"{url}: {reason}" for url, reason in error.failures)
        case IntegrityError():
            what, why = _as_sentence(error.name), "; ".join(error.problems)
        case ConversionError():
            what, why = f"{error.name} cannot be converted", "; ".join(error.problems)
        case NotADatasetError():
            what, why = f"{error.path} is not a dataset", error.reason
        case UnknownIdError():
            what, why = f"no dataset {error.wanted!r}", f"it is not among {error.known}" if error.known else ""
        case UnknownKeyError():
            what = f"no key {error.key!r}"
            why = f"it is not among {', '.join(error.known)}" if error.known else "the data has no keys"
        case DatasetsRLError():
            what, why = _split_message(error.message.partition("\n")[0])  # further lines are a table
    notes = error.notes if isinstance(error, DatasetsRLError) else ()
    return what, "; ".join(filter(None, (why, *notes)))


def _split_message(message: str) -> tuple[str, str]:
    """Split a message at the first colon, or before the expectation: ``x is 2``, ``expected 1``."""
    what, *rest = re.split(r": |, (?=expected )", message, maxsplit=1)
    return what, "".join(rest)


def _explain_python_error(error: Exception) -> tuple[str, str]:
    if isinstance(error, MemoryError):
        return "not enough memory", str(error) or "the process can allocate no more"
    if isinstance(error, OSError) and error.strerror:
        return f"{_refused_path(error)} cannot be used", error.strerror
    return "the command failed", f"{type(error).__name__}: {error}"


def _refused_path(error: OSError) -> str:
    """Return the path that the system refused, or the file in this path that should be a folder."""
    if error.errno == errno.ENOTDIR and isinstance(error.filename, str):
        return next((str(one) for one in Path(error.filename).parents if one.is_file()), error.filename)
    return os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else "a file or a connection"


def _as_sentence(what: str) -> str:
    # `what` is a name or a sentence.
    return what if " " in what and "/" not in what else f"{what} is not as expected"
