"""The inputs of a lock: which datasets ids, mixtures and programs name, and whether a lock still fits them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path

from datasets_rl import disk, sources, store
from datasets_rl.catalog.mixture_file import Member, read_mixture
from datasets_rl.errors import DatasetsRLError
from datasets_rl.lockfile.lock import Lock, LockedMixture, name_in_lock, place_of, relative_path
from datasets_rl.lockfile.programs import read_program
from datasets_rl.settings import Settings


@dataclass
class Inputs:
    """What the inputs of a lock name."""

    base: Path
    """The folder of the lock, to which paths in programs are relative."""
    settings: Settings
    """The settings, with the home."""
    named: dict[str, str] = field(default_factory=dict)
    """The names of the datasets in the lock, each with the first place that names it, such as ``train.py:12``."""
    mixtures: list[LockedMixture] = field(default_factory=list)
    listed: dict[str, None] = field(default_factory=dict)
    """The inputs as the lock lists them."""
    computed: list[str] = field(default_factory=list)
    """Calls of programs that name a dataset in a way that only running the program would show, a sentence each."""

    @classmethod
    def read(cls, targets: Iterable[str | Path], base: Path, settings: Settings) -> Inputs:
        """Read mixtures and programs, and find the names of all datasets. No dataset is opened.

        Args:
            targets: Ids, folders, files of mixtures (``.toml``) and programs (``.py``).
            base: The folder of the lock.
            settings: The settings, with the home.

        Raises:
            UnknownIdError: If there is no such id.
            InvalidArgumentError: If a mixture or a program cannot be read.
        """
        inputs = cls(base, settings)
        for target in targets:
            path = disk.expand_home(target).absolute()
            if path.suffix == ".py":
                inputs._add_program(path)
            elif path.suffix == ".toml":
                inputs._add_mixture(path)
                inputs.listed[relative_path(path, base)] = None
            else:
                inputs.listed[inputs._add(target, "")] = None
        return inputs

    def _add(self, dataset: str | Path, place: str) -> str:
        name = name_in_lock(store.id_or_path(dataset), self.base, self.settings)
        self.named.setdefault(name, place or name)
        return name

    def _add_mixture(self, path: Path, place: str = "") -> None:
        members, settings = read_mixture(path)
        file = relative_path(path, self.base)
        if file in {mixture.file for mixture in self.mixtures}:
            return
        tables = []
        for member in members:
            entries = {one.name: getattr(member, one.name) for one in fields(Member)}
            stated = {name: value for name, value in entries.items() if value is not None and value != ()}
            tables.append({**stated, "dataset": self._add(member.dataset, place or file)})
        self.mixtures.append(LockedMixture(file, settings, tuple(tables)))

    def _add_program(self, path: Path) -> None:
        base = self.base
        program, file = read_program(path), relative_path(path, base)
        self.listed[file] = None
        for opened in program.opened:
            place = f"{file}:{opened.line}"
            if opened.is_mixture:
                self._add_mixture(base / disk.expand_home(opened.name), place)
            else:
                name = opened.name
                is_path = name.startswith((".", "~", "/")) or (not _is_known(name) and (base / name).exists())
                self._add(base / disk.expand_home(name) if is_path else name, place)
        self.computed += [f"{file}:{one.line}: {one.call}({one.name}) has no constant" for one in program.computed]


def _is_known(name: str) -> bool:
    with suppress(DatasetsRLError):
        return bool(sources.find(name))
    return False


def target_of(listed: str, base: Path) -> str | Path:
    """Return the id, or the path of the file or folder, of an input that a lock lists."""
    return base / listed if Path(listed).suffix in {".py", ".toml"} else place_of(listed, base)


def outdated(lock: Lock, settings: Settings) -> list[str]:
    """Return how a lock does not fit its programs and mixtures, a sentence each. No dataset is opened."""
    base = lock.path.parent
    try:
        inputs = Inputs.read([target_of(one, base) for one in lock.inputs], base, settings)
    except DatasetsRLError as error:
        return [error.message]
    named = {one.id for one in lock.datasets if not one.is_parent}
    problems = [
        f"{place} opens {name}, which the lock does not have"
        for name, place in inputs.named.items()
        if name not in named
    ]
    problems += [f"no input opens {name}" for name in sorted(named - inputs.named.keys())]
    locked = {mixture.file: mixture for mixture in lock.mixtures}
    for mixture in inputs.mixtures:
        if mixture.file in locked:
            problems += _mixture_differences(mixture, locked[mixture.file])
    return problems


def _mixture_differences(mixture: LockedMixture, locked: LockedMixture) -> Iterator[str]:
    own, wanted = ({**one.settings} for one in (mixture, locked))
    for one, values in ((mixture, own), (locked, wanted)):
        for member in one.members:
            values |= {f"{name} of {member['dataset']}": value for name, value in member.items() if name != "dataset"}
    for name in sorted(own.keys() | wanted.keys()):
        if (value := own.get(name, "nothing")) != (expected := wanted.get(name, "nothing")):
            yield f"{name} in {mixture.file} is {value}, expected {expected}"
