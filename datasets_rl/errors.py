"""Every exception that the package raises, a class for each remedy.

    DatasetsRLError
    ├── InvalidArgumentError (ValueError,           correct the call
    │   │                         RuntimeError)
    │   ├── UnknownKeyError (KeyError)              pick a field that exists
    │   └── WrongTypeError (TypeError)              give a value of the expected type
    ├── UnknownIdError (LookupError)                pick an id that exists
    │   └── NotADatasetError                        give a folder that holds a dataset
    ├── FetchError                                  try again, or give a mirror or a local file
    │   └── OfflineError                            allow the network, or bring the file
    ├── PushError                                   give a token that may write, or push again
    ├── IntegrityError                              the bytes are not the expected bytes
    │   └── ManifestError                           a stored dataset does not describe itself
    ├── DiskFullError                               make room, or write elsewhere
    │   └── FileTooLargeError                       raise the limit of the size of files, or write elsewhere
    ├── NotWritableError (OSError)                  fix the permissions, or write elsewhere
    ├── MissingDependencyError (ImportError)        install the named extra
    ├── LibraryError (RuntimeError)                 install another version of the named library
    ├── ConversionError                             the upstream file breaks the format
    ├── NotEnoughMemoryError                        make the work smaller, or use a machine with more
    ├── PreprocessError                             correct the recipe or the function (the dataset is unchanged)
    ├── LockedError                                 another process is at work
    ├── TimedOutError (TimeoutError)                another process is too slow, or gone
    ├── ConfirmationRequiredError                   confirm the deletion
    ├── EnvironmentWarning (UserWarning)            a warning: the environment is not exactly the dataset's
    ├── RecordingWarning (UserWarning)              a warning: recorded episodes are not, or twice, a part of a dataset
    ├── UntrustedSettingsWarning (UserWarning)      a warning: trust the project's file of settings, or ignore this
    └── UnknownFinalWarning (UserWarning)           a warning: mask or drop transitions without a next observation

A message says which value was expected, which was found, and where. The `Remedy` of an error says what to do next.
``hint`` is the remedy with arguments and functions of Python, and the command line prints options and commands instead
(``cli/remedies.py``):

    Remedy("download it again with {}", Argument("force", True))

reads "download it again with force=True" in Python. The command line maps each class to an exit code (``cli/errors.py``).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "Argument",
    "Call",
    "ConfirmationRequiredError",
    "ConversionError",
    "DatasetsRLError",
    "DiskFullError",
    "EnvironmentWarning",
    "FetchError",
    "FileTooLargeError",
    "IntegrityError",
    "InvalidArgumentError",
    "LibraryError",
    "LockMismatchError",
    "LockedError",
    "LossyExportError",
    "ManifestError",
    "MissingDependencyError",
    "NotADatasetError",
    "NotEnoughMemoryError",
    "NotWritableError",
    "OfflineError",
    "OutdatedLockError",
    "PreprocessError",
    "PushError",
    "RecordingWarning",
    "Remedy",
    "TimedOutError",
    "UnknownFinalWarning",
    "UnknownIdError",
    "UnknownKeyError",
    "UnsearchedWarning",
    "UntrustedSettingsWarning",
    "WrongTypeError",
]


@dataclass(frozen=True)
class Argument:
    """Keyword argument of a public function: ``force=True``."""

    name: str
    value: Any = ...
    """The value, or ``...`` if the user chooses."""

    def __str__(self) -> str:
        """Return the argument as Python code."""
        return f"{self.name}={_python_code(self.value)}"

    def option_words(self, option: str = "", placeholder: str = "...") -> list[str]:
        """Return the argument as words of a command line: an option, and the value, if any.

        Args:
            option: The option. By default the name of the argument.
            placeholder: What stands for a value that the user chooses. Empty for an option without a value.
        """
        option = option or f"--{self.name.replace('_', '-')}"
        if isinstance(self.value, bool):
            return [option]
        if self.value is ...:
            return [option, placeholder] if placeholder else [option]
        several = self.value if isinstance(self.value, (list, tuple)) else [self.value]
        return [word for one in several for word in (option, str(one))]


@dataclass(frozen=True, init=False)
class Call:
    """Call of a public function: ``datasets_rl.download('d4rl/x', force=True)``.

    Args:
        function: The function's name in the package, with dots.
        values: The positional arguments.
        named: The keyword arguments.
    """

    function: str
    arguments: tuple[Any, ...]
    """The values of the positional arguments, then an `Argument` for each of the others."""

    def __init__(self, function: str, *values: Any, **named: Any) -> None:
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "arguments", (*values, *(Argument(name, value) for name, value in named.items())))

    def __str__(self) -> str:
        """Return the call as Python code."""
        return f"datasets_rl.{self.function}({', '.join(map(_python_code, self.arguments))})"


@dataclass(frozen=True, init=False)
class Remedy:
    """What to do next about an error. An empty remedy is false.

    Args:
        text: A sentence with ``{}`` for each action. The text is a literal: names and paths of the user are actions.
        actions: Arguments, calls, other remedies, and plain values.
    """

    text: str
    actions: tuple[Any, ...]

    def __init__(self, text: str, *actions: Any) -> None:
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "actions", actions)

    @classmethod
    def from_hint(cls, hint: str | Remedy) -> Remedy:
        """Return the remedy of a hint, which may be a text without actions."""
        if isinstance(hint, Remedy):
            return hint
        return cls("{}", hint) if hint else cls("")

    def text_with(self, spell: Callable[[Any], str]) -> str:
        """Return the text, in which `spell` writes each argument and call, as Python code or as a command."""
        actions = (one.text_with(spell) if isinstance(one, Remedy) else spell(one) for one in self.actions)
        return self.text.format(*actions)

    def __bool__(self) -> bool:
        return bool(self.text)

    def __str__(self) -> str:
        """Return the remedy in the words of Python."""
        return self.text_with(str)


def _python_code(value: Any) -> str:
    if value is ...:
        return "..."
    if isinstance(value, (Argument, Call)):
        return str(value)
    return repr(str(value) if isinstance(value, Path) else value)


def join_names(names: Sequence[str], most: int = 3) -> str:
    """Return the first names for a message, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


class DatasetsRLError(Exception):
    """Base class of every error of this package.

    Args:
        message: The expected value, the actual value, and the place.
        hint: What to do next. Empty if there is nothing to do.
    """

    remedy: Remedy
    """What to do next, as data."""
    notes: tuple[str, ...] = ()
    """What else is to be known, a sentence each: what failed before, or what fails because of this error."""

    def __init__(self, message: str, *, hint: str | Remedy = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def hint(self) -> str:
        """What to do next, in the words of Python. A text or a `Remedy` can be assigned."""
        return str(self.remedy)

    @hint.setter
    def hint(self, hint: str | Remedy) -> None:
        self.remedy = Remedy.from_hint(hint)

    def __str__(self) -> str:
        """Return the message with the notes, then the hint on the next line."""
        text = "; ".join((self.message, *self.notes))
        return f"{text}\n{self.hint}" if self.remedy else text

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the way back from a worker process, whatever the subclass's constructor takes."""
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[DatasetsRLError], args: tuple[object, ...], state: dict[str, object]) -> DatasetsRLError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidArgumentError(DatasetsRLError, ValueError, RuntimeError):
    """Raised when an argument is invalid, or the state of an object forbids a call, such as sampling an empty buffer.

    The error is a `ValueError` and a `RuntimeError`: TorchRL raises either for the same mistakes.
    """


class WrongTypeError(InvalidArgumentError, TypeError):
    """Raised when an argument has the wrong type, or a call has no argument of this name.

    TorchRL raises a `TypeError`.
    """


class UnknownKeyError(InvalidArgumentError, KeyError):
    """Raised when a dataset has no field with this key.

    Args:
        key: The key, with dots, or several keys, none of which exists.
        known: The keys of the fields, with dots.
    """

    def __init__(self, key: str | Sequence[str], known: Sequence[str]) -> None:
        keys = [key] if isinstance(key, str) else [*key]
        near = dict.fromkeys(
            match
            for one in keys
            for match in difflib.get_close_matches(one, known, n=3 if len(keys) == 1 else 1, cutoff=0.5)
        )
        listed = ", ".join(known) or "none: the data has no keys"
        hint = f"did you mean {', '.join(near)}?" if near else ""
        if other := [one for one in keys if one in known]:
            groups = tuple(other[0].split("."))
            listed += f", where {other[0]} is spelled in another way"
            hint = f"{other[0]!r} is a single name, and {groups} is an entry of a group: use the key that the data has"
        super().__init__(f"no key {', '.join(map(repr, keys))} among {listed}", hint=hint)
        self.key = ", ".join(keys)
        self.known = tuple(known)


class UnknownIdError(DatasetsRLError, LookupError):
    """Raised when no source, or no dataset of the source, has this name.

    Args:
        wanted: The given id.
        nearest: Similar ids, the most similar id first.
        known: What the id was looked up in, as in "183 ids of d4rl".
    """

    def __init__(self, wanted: str, nearest: Sequence[str] = (), known: str = "") -> None:
        message = f"no dataset {wanted!r}" + (f" among {known}" if known else "")
        every = Remedy("`{}` shows every id", Call("list_datasets"))
        hint = Remedy("did you mean {}? {}", ", ".join(nearest), every) if nearest else every
        super().__init__(message, hint=hint)
        self.wanted = wanted
        self.nearest = tuple(nearest)
        self.known = known


class NotADatasetError(UnknownIdError):
    """Raised when a folder contains no complete dataset.

    Args:
        path: The folder.
        reason: What is missing in the folder.
        hint: What to do next.
    """

    def __init__(
        self, path: Path | str, reason: str = "the folder has no manifest.json", *, hint: str | Remedy = ""
    ) -> None:
        DatasetsRLError.__init__(self, f"{path} is not a dataset: {reason}", hint=hint)
        self.path = Path(path)
        self.reason = reason
        self.wanted = str(path)
        self.nearest = ()
        self.known = ""


_TRY_AGAIN = Remedy(
    "run it again to resume, or give the file with {} or {}", Argument("from_local"), Argument("mirrors")
)


class FetchError(DatasetsRLError):
    """Raised when no address serves a file.

    Args:
        name: The file.
        failures: Each address, in the order of the attempts, and why the address failed.
        unreached: Whether no address gave an answer.
        hint: What to do next. By default another try, or another place of the file.
    """

    def __init__(
        self, name: str, failures: Sequence[tuple[str, str]], *, unreached: bool = False, hint: str | Remedy = ""
    ) -> None:
        lines = "; ".join(f"{url}: {why}" for url, why in failures) or "there is no address"
        super().__init__(f"could not fetch {name}: {lines}", hint=hint or _TRY_AGAIN)
        self.name = name
        self.failures = tuple(failures)
        self.unreached = unreached


SWITCH_ON = "unset RLDS_OFFLINE, or offline in the file of settings"
"""What to do where network requests are switched off: the setting has two places."""


class OfflineError(FetchError):
    """Raised when a file requires the network and the setting `offline`, or RLDS_OFFLINE, forbids requests.

    Args:
        name: The file.
        failures: Addresses that need no network, and why each failed.
        hint: What to do next.
    """

    def __init__(self, name: str, failures: Sequence[tuple[str, str]] = (), *, hint: str | Remedy = "") -> None:
        super().__init__(
            name,
            [*failures, ("offline", "network requests are switched off")],
            hint=hint or Remedy(f"{SWITCH_ON}, or give the file with {{}}", Argument("from_local")),
        )


class PushError(DatasetsRLError):
    """Raised when a dataset could not be published.

    Args:
        address: The address of the repository.
        reason: What failed.
        hint: What to do next.
    """

    def __init__(self, address: str, reason: str, *, hint: str | Remedy = "") -> None:
        super().__init__(f"could not push to {address}: {reason}", hint=hint)
        self.address = address
        self.reason = reason


class IntegrityError(DatasetsRLError):
    """Raised when files differ from the expected files.

    Args:
        name: The file or dataset.
        problems: All problems, each with the place.
        hint: What to do next. By default how to get the dataset again.
    """

    def __init__(self, name: str, problems: Sequence[str], *, hint: str | Remedy = "") -> None:
        again = Remedy(
            "download it again with {}. Make a preprocessed dataset again from its parent, and of a recorded dataset, "
            "restore a copy",
            Argument("force", True),
        )
        super().__init__(f"{name}: {'; '.join(problems)}", hint=hint or again)
        self.name = name
        self.problems = tuple(problems)


class ManifestError(IntegrityError):
    """Raised when a manifest.json is invalid, or does not match the files of the folder."""


class LockMismatchError(IntegrityError):
    """Raised when a dataset is not the dataset that a lock of datasets names.

    Args:
        name: The dataset.
        problems: The differences, each with the value and the expected value.
        hint: What to do next.
    """

    def __init__(self, name: str, problems: Sequence[str], *, hint: str | Remedy = "") -> None:
        accept = Remedy("{} locks the present data instead", Call("lockfile.write_lock", ...))
        super().__init__(name, problems, hint=hint or accept)


class OutdatedLockError(DatasetsRLError):
    """Raised when a lock of datasets does not fit the programs and mixtures that it was written from, or lacks a dataset.

    Args:
        path: The file of the lock.
        problems: What does not fit, a sentence each.
    """

    def __init__(self, path: Path | str, problems: Sequence[str]) -> None:
        super().__init__(
            f"{path} is not up to date: {'; '.join(problems)}",
            hint=Remedy(
                "{} writes the lock again, and {} adds datasets",
                Call("lockfile.write_lock"),
                Call("lockfile.write_lock", ...),
            ),
        )
        self.path = Path(path)
        self.problems = tuple(problems)


class DiskFullError(DatasetsRLError):
    """Raised when a file system has too little free space.

    Args:
        path: A path on the file system.
        needed: Number of bytes to write, or None if unknown.
        free: Number of free bytes.
        why: What the bytes are for.
        hint: What to do next. The default fits a run that can be continued.
    """

    def __init__(
        self, path: Path | str, needed: int | None, free: int, why: str = "", *, hint: str | Remedy = ""
    ) -> None:
        wanted = f"{needed:,} bytes needed" if needed is not None else "writing failed"
        super().__init__(
            f"not enough disk at {path}: {wanted}{f' ({why})' if why else ''}, {free:,} bytes free",
            hint=hint
            or Remedy(
                "make room and run it again to continue, or choose another place with {}, {} or RLDS_HOME",
                Argument("root"),
                Argument("out"),
            ),
        )
        self.path = Path(path)
        self.needed = needed
        self.free = free


class FileTooLargeError(DiskFullError):
    """Raised when a file system, or the limit of the process, allows no file as large as the written file.

    Args:
        path: The path that was written.
        free: Number of free bytes of the file system.
    """

    def __init__(self, path: Path | str, free: int) -> None:
        DatasetsRLError.__init__(
            self,
            f"a file at {path} is too large: the file system, or the limit of this process, allows no file of that size",
            hint=Remedy(
                "raise the limit (`ulimit -f` shows it) and run it again to continue, or choose another place with {}, "
                "{} or RLDS_HOME",
                Argument("root"),
                Argument("out"),
            ),
        )
        self.path = Path(path)
        self.needed = None
        self.free = free


class NotWritableError(DatasetsRLError, OSError):
    """Raised when the system lets this process write nothing at a path, such as a read-only folder.

    Args:
        path: The path that the system refused.
        reason: The error of the system.
        hint: What to do next. The default fits the folder of the data.
    """

    def __init__(self, path: Path | str, reason: str, *, hint: str | Remedy = "") -> None:
        super().__init__(
            f"{path} cannot be written: {reason}",
            hint=hint
            or Remedy(
                "choose another place with {}, {} or RLDS_HOME, or fix its permissions",
                Argument("root"),
                Argument("out"),
            ),
        )
        self.path = Path(path)


class MissingDependencyError(DatasetsRLError, ImportError):
    """Raised when an optional library is not installed.

    Args:
        library: The library.
        extra: The extra of datasets-rl that installs the library.
        purpose: What requires the library.
    """

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {library}", hint=f"pip install 'datasets-rl[{extra}]'")
        self.library = library
        self.extra = extra


class LibraryError(DatasetsRLError, RuntimeError):
    """Raised when a library cannot be imported, or lacks what this package calls: no file is at fault.

    Args:
        library: The library with the version, as in ``av 15.0.0``.
        problem: What the library lacks, and where.
        hint: What to do next. By default another version.
    """

    def __init__(self, library: str, problem: str, *, hint: str | Remedy = "") -> None:
        name = library.partition(" ")[0]
        super().__init__(
            f"{library} cannot be used by this version of datasets-rl: {problem}",
            hint=hint or f"pip install --upgrade {name}. If the newest version has the same fault, report the message",
        )
        self.library = library
        self.problem = problem


class ConversionError(DatasetsRLError):
    """Raised when an upstream file violates the format of the file.

    Args:
        name: The file or dataset.
        problems: All problems, each with the column and the row.
        hint: What to do next.
    """

    def __init__(self, name: str, problems: Sequence[str], *, hint: str | Remedy = "") -> None:
        shown = "; ".join(problems)
        super().__init__(f"{name} cannot be converted: {shown}", hint=hint)
        self.name = name
        self.problems = tuple(problems)


class LossyExportError(InvalidArgumentError):
    """Raised when a format cannot hold everything that a dataset has. Nothing was written.

    Args:
        name: The dataset.
        to: The format.
        losses: What would be left out or changed, a sentence each.
    """

    def __init__(self, name: str, to: str, losses: Sequence[str]) -> None:
        super().__init__(
            f"{to} cannot hold everything of {name}: {'; '.join(losses)}",
            hint=Remedy(
                "accept that with {}, or choose a format that holds everything: hdf5, npz, parquet",
                Argument("lossy", True),
            ),
        )
        self.name = name
        self.to = to
        self.losses = tuple(losses)


class NotEnoughMemoryError(DatasetsRLError):
    """Raised when a task needs more memory than the machine has."""


class PreprocessError(DatasetsRLError):
    """Raised when a step of a recipe fails, or returns something other than a dataset."""


class LockedError(DatasetsRLError):
    """Raised when another process still has the lock of a dataset after the time limit.

    Args:
        name: The dataset.
        owner: The other process, as in "process 4711 on node3".
        path: The file that names the owner.
    """

    def __init__(self, name: str, owner: str, path: Path | str) -> None:
        super().__init__(
            f"{name} is locked by {owner}", hint=Remedy("wait for that process, or if it is gone, delete {}", path)
        )
        self.name = name
        self.owner = owner
        self.path = Path(path)


class TimedOutError(DatasetsRLError, TimeoutError):
    """Raised when another process was not ready within the time limit."""


class ConfirmationRequiredError(DatasetsRLError):
    """Raised when a deletion requires a confirmation and no terminal is connected.

    Args:
        question: What would be deleted.
    """

    def __init__(self, question: str) -> None:
        super().__init__(f"{question} requires a confirmation, and no terminal is connected")


class EnvironmentWarning(DatasetsRLError, UserWarning):
    """Warning that an environment differs from the environment that a dataset names."""


class RecordingWarning(DatasetsRLError, UserWarning):
    """Warning that recorded episodes are not a part of a dataset, or were not added again."""


class UntrustedSettingsWarning(DatasetsRLError, UserWarning):
    """Warning that settings of a project's file are ignored, because the user has not trusted that file."""


class UnsearchedWarning(DatasetsRLError, UserWarning):
    """Warning that a folder has so many folders below it that not all folders are searched for datasets."""


class UnknownFinalWarning(DatasetsRLError, UserWarning):
    """Warning that some episodes of an opened dataset have no final observation, so that transitions read zeros.

    The warning is issued once per dataset and process, and raised only if a filter turns warnings into errors.

    Args:
        dataset: The id of the dataset.
        unknown: Number of episodes with an unknown final observation.
        episodes: Number of all episodes.
    """

    def __init__(self, dataset: str, unknown: int, episodes: int) -> None:
        super().__init__(
            f"{dataset}: the final observation of {unknown:,} of {episodes:,} episodes is unknown and reads as zeros",
            hint="mask targets with batch['next', 'final_known'], or open the dataset with final_unknown='drop_truncated' or "
            "'drop'. final_unknown='keep' in the call, or this class in warnings.simplefilter, silences the warning",
        )
        self.dataset = dataset
        self.unknown = unknown
        self.episodes = episodes
