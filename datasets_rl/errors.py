"""Every exception that the package raises, one class for each remedy.

    DatasetsRLError
    ├── InvalidArgumentError (ValueError)           correct the call
    │   └── UnknownKeyError (KeyError)              pick a field that exists
    ├── UnknownIdError (LookupError)                pick an id that exists
    │   └── NotADatasetError                        give a folder that holds a dataset
    ├── FetchError                                  try again, or give a mirror or a local file
    │   └── OfflineError                            allow the network, or bring the file
    ├── IntegrityError                              the bytes are not the ones expected
    │   └── ManifestError                           a stored dataset does not describe itself
    ├── DiskFullError                               make room, or write elsewhere
    ├── MissingDependencyError (ImportError)        install the named extra
    ├── ConversionError                             the upstream file breaks its own format
    ├── NotEnoughMemoryError                        make it smaller, or use a machine with more
    ├── PreprocessError                             correct the recipe or its function; the dataset is as it was
    ├── LockedError                                 another process is at work
    ├── ConfirmationRequiredError                   confirm with --yes
    └── UnknownFinalWarning (UserWarning)           a warning: mask or drop transitions without a next observation

Messages say what was wanted, what came and where; ``hint`` says what to do next. The command line maps each class
to an exit code (``cli/errors.py``).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from datasets_rl.deprecation import former_names

__all__ = [
    "ConfirmationRequiredError",
    "ConversionError",
    "DatasetsRLError",
    "DiskFullError",
    "FetchError",
    "IntegrityError",
    "InvalidArgumentError",
    "LockedError",
    "ManifestError",
    "MissingDependencyError",
    "NotADatasetError",
    "NotEnoughMemoryError",
    "OfflineError",
    "PreprocessError",
    "UnknownFinalWarning",
    "UnknownIdError",
    "UnknownKeyError",
]


RENAMED = {
    "BadArgument": "InvalidArgumentError",
    "ConversionFailed": "ConversionError",
    "DiskFull": "DiskFullError",
    "FetchFailed": "FetchError",
    "IntegrityFailed": "IntegrityError",
    "Locked": "LockedError",
    "ManifestInvalid": "ManifestError",
    "MissingDependency": "MissingDependencyError",
    "NeedsYes": "ConfirmationRequiredError",
    "NotADataset": "NotADatasetError",
    "NotEnoughMemory": "NotEnoughMemoryError",
    "Offline": "OfflineError",
    "PreprocessFailed": "PreprocessError",
    "UnknownId": "UnknownIdError",
    "UnknownKey": "UnknownKeyError",
}
"""Names of version 0.1, which version 0.2 still has."""


__getattr__ = former_names(globals(), RENAMED)


class DatasetsRLError(Exception):
    """Base of every error of this package.

    Args:
        message: What was wanted, what came, and where.
        hint: What to do next; empty where there is nothing to do.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Return the message, then the hint in a line of its own."""
        return f"{self.message}\n{self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the way back from a worker process, whatever the subclass's constructor takes."""
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[DatasetsRLError], args: tuple[object, ...], state: dict[str, object]) -> DatasetsRLError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidArgumentError(DatasetsRLError, ValueError):
    """An argument that no run of the program could accept."""


class UnknownKeyError(InvalidArgumentError, KeyError):
    """A dataset has no field of this key.

    Args:
        key: The key, with dots.
        known: The keys that there are, with dots.
    """

    def __init__(self, key: str, known: Sequence[str]) -> None:
        near = difflib.get_close_matches(key, known, n=3, cutoff=0.4)
        super().__init__(
            f"no key {key!r} among {', '.join(known) or 'none: the data has no keys'}",
            hint=f"did you mean {', '.join(near)}?" if near else "",
        )
        self.key = key


class UnknownIdError(DatasetsRLError, LookupError):
    """No source, or no dataset of that source, has this name.

    Args:
        wanted: The id as it was given.
        nearest: Ids that look like it, best first.
        known: What the id was looked up in, as in "183 ids of d4rl".
    """

    def __init__(self, wanted: str, nearest: Sequence[str] = (), known: str = "") -> None:
        message = f"no dataset {wanted!r}" + (f" among {known}" if known else "")
        near = f"did you mean {', '.join(nearest)}? " if nearest else ""
        super().__init__(message, hint=f"{near}`rlds list` shows every id")
        self.wanted = wanted
        self.nearest = tuple(nearest)


class NotADatasetError(UnknownIdError):
    """A folder was named, and it holds no finished dataset.

    Args:
        path: The folder.
        reason: What is missing there.
    """

    def __init__(self, path: Path | str, reason: str = "it has no manifest.json", *, hint: str = "") -> None:
        DatasetsRLError.__init__(self, f"{path} is not a dataset: {reason}", hint=hint)
        self.path = Path(path)
        self.wanted = str(path)
        self.nearest = ()


class FetchError(DatasetsRLError):
    """No address gave the file.

    Args:
        what: The file that was wanted.
        failures: For each address tried, in order, the address and why it failed.
    """

    def __init__(self, what: str, failures: Sequence[tuple[str, str]], *, hint: str = "") -> None:
        lines = "; ".join(f"{url}: {why}" for url, why in failures) or "it has no address"
        default = "run the same command again to resume, or give the file with --from-local PATH or --mirror URL"
        super().__init__(f"could not fetch {what}: {lines}", hint=hint or default)
        self.what = what
        self.failures = tuple(failures)


class OfflineError(FetchError):
    """The network is needed and RLDS_OFFLINE forbids it.

    Args:
        failures: Addresses that need no network and did not give the file either.
    """

    def __init__(self, what: str, failures: Sequence[tuple[str, str]] = (), *, hint: str = "") -> None:
        super().__init__(
            what,
            [*failures, ("RLDS_OFFLINE", "network requests are switched off")],
            hint=hint or "unset RLDS_OFFLINE, or give the file with --from-local PATH",
        )


class IntegrityError(DatasetsRLError):
    """Bytes at hand are not the bytes expected.

    Args:
        problems: Every fault found, each with its place.
        what: What was judged.
    """

    def __init__(self, what: str, problems: Sequence[str], *, hint: str = "") -> None:
        shown = "; ".join(problems)
        super().__init__(f"{what}: {shown}", hint=hint or "download it again with --force")
        self.what = what
        self.problems = tuple(problems)


class ManifestError(IntegrityError):
    """A manifest.json that does not describe the folder it lies in, or that reaches out of it."""


class DiskFullError(DatasetsRLError):
    """The file system cannot hold what is about to be written.

    Args:
        path: Where.
        needed: Bytes wanted.
        free: Bytes there.
        why: What the bytes are for.
        hint: What to do next; by default what helps a run that can go on.
    """

    def __init__(
        self,
        path: Path | str,
        needed: int | None,
        free: int,
        why: str = "",
        *,
        hint: str = "",
    ) -> None:
        wanted = f"{needed:,} bytes needed" if needed is not None else "writing failed"
        super().__init__(
            f"not enough disk at {path}: {wanted}{f' ({why})' if why else ''}, {free:,} bytes free",
            hint=hint
            or "make room and run it again, what is done is kept; or choose another place with --root, --out or RLDS_HOME",
        )
        self.path = Path(path)
        self.needed = needed
        self.free = free


class MissingDependencyError(DatasetsRLError, ImportError):
    """An optional library is absent.

    Args:
        library: What could not be imported.
        extra: The extra of datasets-rl that brings it.
        purpose: What needs it.
    """

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {library}", hint=f"pip install 'datasets-rl[{extra}]'")
        self.library = library
        self.extra = extra


class ConversionError(DatasetsRLError):
    """An upstream file breaks its own format.

    Args:
        what: The file or dataset.
        problems: Every fault found, each with the column and the row.
    """

    def __init__(self, what: str, problems: Sequence[str], *, hint: str = "") -> None:
        shown = "; ".join(problems)
        super().__init__(f"{what} cannot be converted: {shown}", hint=hint)
        self.what = what
        self.problems = tuple(problems)


class NotEnoughMemoryError(DatasetsRLError):
    """The machine does not have the memory that a piece of work needs."""


class PreprocessError(DatasetsRLError):
    """A step of a recipe failed, or made something that is no dataset."""


class LockedError(DatasetsRLError):
    """Another process holds the dataset and did not finish in the time given.

    Args:
        what: The dataset.
        owner: Who holds it, as in "process 4711 on node3".
        path: The owner file.
    """

    def __init__(self, what: str, owner: str, path: Path | str) -> None:
        super().__init__(
            f"{what} is being made by {owner}",
            hint=f"wait for it; if that process is gone, delete {path}",
        )
        self.what = what
        self.owner = owner
        self.path = Path(path)


class ConfirmationRequiredError(DatasetsRLError):
    """Something would be deleted or replaced, and nobody is there to confirm it."""

    def __init__(self, question: str) -> None:
        super().__init__(f"{question} needs a yes, and there is no terminal to ask", hint="add --yes")


class UnknownFinalWarning(DatasetsRLError, UserWarning):
    """A dataset lacks the final observation of some episodes, and was opened with the transitions that read zeros.

    It is issued once per dataset and process, and raised only where a filter makes an error of it.

    Args:
        dataset: The id of the dataset.
        unknown: Episodes whose final observation is unknown.
        episodes: All episodes.
    """

    def __init__(self, dataset: str, unknown: int, episodes: int) -> None:
        super().__init__(
            f"{dataset}: the final observation of {unknown:,} of {episodes:,} episodes is unknown and reads as zeros",
            hint="mask targets with batch['next', 'final_known'], or open it with final_unknown='drop_truncated' or "
            "'drop'; final_unknown='keep' in the call, or this class in warnings.simplefilter, silences the warning",
        )
        self.dataset = dataset
        self.unknown = unknown
        self.episodes = episodes
