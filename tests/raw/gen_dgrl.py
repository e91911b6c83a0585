"""Gen-DGRL's archives: generated levels in the format of Procgen's storage."""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from raw.case import Case, Fault
from raw.xz import blocked, joined, one_block
from servers import serve

from datasets_rl.ted.episode import Episode

__all__ = ["CASES", "Level", "as_npy", "as_npz", "game", "play", "tarred", "written"]

EXPERT = "Procgen/Datasets/Compressed/1M/level_200/expert/bigfish.tar.xz"
LOG = "25M/maze.tar.xz"
LEVELS = "100k_procgen_dataset_1.tar"


@dataclass(frozen=True)
class Level:
    """An episode of T actions and T + 1 frames, the last of which is from the next level."""

    frames: np.ndarray
    """[T + 1, 3, 64, 64], uint8."""
    action: np.ndarray
    reward: np.ndarray
    number: int
    seed: int
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Arrays that replace the correct arrays in the file."""
    name: str = ""
    """The name of the file, where the name is not correct."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of the file; the frames are float32, the dtype of a policy's input."""
        length = len(self.action)
        made = {
            "observations": self.frames.astype(np.float32),
            "actions": self.action[:, None],
            "rewards": self.reward[:, None],
            "dones": np.arange(length) == length - 1,
            **self.changes,
        }
        return {name: values for name, values in made.items() if values is not None}

    def file(self, suffix: str) -> str:
        """Return the name of the file."""
        total = float(self.reward.sum())
        made = f"20220607T0102{self.number % 60:02}_{self.number}_{len(self.action)}_{self.seed}_{total:.2f}"
        return self.name or f"{made}.{suffix}"

    def episode(self) -> Episode:
        """Return the trajectory that must be stored, without the frame of the next level."""
        length = len(self.action)
        end = (np.arange(length) == length - 1)[:, None]
        return Episode(
            {
                ("action",): self.action[:, None],
                ("next", "reward"): self.reward[:, None],
                ("next", "terminated"): end,
                ("next", "truncated"): np.zeros_like(end),
            },
            {("observation",): self.frames[:-1]},
            metadata={
                "saved": np.int64(f"202206070102{self.number % 60:02}"),
                "number": np.int64(self.number),
                "level_seed": np.int64(self.seed),
                "stated_return": np.float64(f"{float(self.reward.sum()):.2f}"),
            },
        )


def play(length: int, number: int, **changes: Any) -> Level:
    """Generate an episode with frames of colored patches and a fish."""
    rng = np.random.default_rng(number)
    scene = np.kron(rng.integers(0, 250, (3, 8, 8)), np.ones((8, 8), int)).astype(np.uint8)
    frames = np.repeat(scene[None], length + 1, axis=0)
    for row in range(length + 1):
        x, y = rng.integers(0, 56, 2)
        frames[row, :, y : y + 8, x : x + 8] = rng.integers(0, 256, (3, 1, 1))
    frames[-1] = 255 - frames[-1]
    frames[0, 0, 0, :2] = [0, 255]
    action = rng.integers(0, 15, length)
    reward = np.round(rng.random(length), 2).astype(np.float32) * (rng.random(length) < 0.3)
    name = changes.pop("name", "")
    return Level(frames, action, reward.astype(np.float32), number, int(rng.integers(0, 200)), changes, name)


def game(lengths: Sequence[int], first: int = 0) -> list[Level]:
    """Generate an episode for each length."""
    return [play(length, first + number) for number, length in enumerate(lengths)]


def as_npy(level: Level) -> bytes:
    """Return the level as a pickled dict of arrays in an .npy file, the format of the published files."""
    with io.BytesIO() as out:
        np.save(out, np.array(level.arrays(), object), allow_pickle=True)
        return out.getvalue()


def as_npz(level: Level) -> bytes:
    """Return the level as an .npz file, the format that the upstream's code writes."""
    with io.BytesIO() as out:
        np.savez_compressed(out, **level.arrays())
        return out.getvalue()


def tarred(files: Mapping[str, bytes], *more: tarfile.TarInfo) -> bytes:
    """Return a tar archive of some files, followed by members without content."""
    with io.BytesIO() as out:
        with tarfile.open(fileobj=out, mode="w") as archive:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
            for entry in more:
                archive.addfile(entry)
        return out.getvalue()


def written(levels: Sequence[Level], folder: str, suffix: str = "npy") -> dict[str, bytes]:
    """Return the files of some episodes by their path in the archive."""
    write = as_npy if suffix == "npy" else as_npz
    return {f"{folder}/{level.file(suffix)}": write(level) for level in levels}


def _put(folder: Path, path: str, data: bytes) -> None:
    """Write bytes to a path below a folder."""
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)


def _expert(folder: Path) -> list[Episode]:
    """Write an archive of many blocks in the published format, with a metadata file of macOS."""
    levels = game([9, 1, 14, 6, 20, 3, 11])
    _put(folder, EXPERT, blocked(tarred({"bigfish/._x.npy": b"x", **written(levels, "bigfish")}), 300_000))
    return [level.episode() for level in levels]


def _log(folder: Path) -> list[Episode]:
    """Write an archive of a block at an address of the second scheme, with .npz files and without a game folder."""
    levels = game([5, 200, 2])
    _put(folder, LOG, lzma.compress(tarred(written(levels, ".", "npz")), preset=0))
    return [level.episode() for level in levels]


def _levels(folder: Path) -> list[Episode]:
    """Write an uncompressed archive of all games, with a file without a step."""
    levels = game([7, 12], 5)
    files = {
        "data/coinrun/broken.npy": b"not an array",
        **written(levels, "data/heist"),
        **written(game([4, 4]), "data/maze"),
    }
    _put(folder, LEVELS, tarred(files))
    return [level.episode() for level in levels]


def _many_expert(folder: Path, size: int) -> None:
    """Episodes of 200 steps at most; frames are packed once, because xz takes a second for each."""
    level = play(max(2, min(200, size // 10_000)), 0)
    noise = np.random.default_rng(0).integers(0, 3, level.frames.shape, dtype=np.uint8)
    level = Level(np.minimum(level.frames, 252) + noise, level.action, level.reward, 0, 0)
    content = as_npy(level)
    body = one_block(content + bytes(-len(content) % 512), preset=1)
    blocks = []
    for number in range(max(2, size // len(body[1]))):
        entry = tarfile.TarInfo(f"bigfish/{Level(level.frames, level.action, level.reward, number, 0).file('npy')}")
        entry.size = len(content)
        blocks += [one_block(entry.tobuf()), body]
    _put(folder, EXPERT, joined([*blocks, one_block(bytes(10240))]))


def _many_levels(folder: Path, size: int) -> None:
    """Write an archive of all games with about `size` bytes."""
    level = play(200, 0)
    content = as_npz(level)
    count = max(4, size // len(content))
    games = ("bigfish", "heist", "maze", "ninja")
    names = {
        f"{folder_}/{Level(level.frames, level.action, level.reward, number, level.seed).file('npz')}": content
        for folder_ in games
        for number in range(count // len(games))
    }
    _put(folder, LEVELS, tarred(names))


@contextmanager
def _served(folder: Path) -> Iterator[Mapping[str, str]]:
    """Serve the archives as a mirror."""
    paths = {f"/{path.relative_to(folder).as_posix()}": path for path in folder.rglob("*") if path.is_file()}
    with serve(paths) as server:
        yield {"RLDS_MIRRORS": f"gen_dgrl={server.url}"}


def _with(change: Callable[[], Level], path: str = EXPERT, suffix: str = "npy") -> Any:
    """Return a function that replaces an archive by an archive with an invalid episode between valid episodes."""

    def corrupt(folder: Path) -> None:
        levels = [*game([3, 4]), change(), play(5, 3)]
        _put(
            folder,
            path,
            lzma.compress(tarred(written(levels, path.rpartition("/")[2].split(".")[0], suffix)), preset=0),
        )

    return corrupt


def _archive(make: Callable[[bytes], bytes], path: str = EXPERT) -> Any:
    """Return a function that changes the bytes of an archive."""
    return lambda folder: _put(folder, path, make((folder / path).read_bytes()))


def _link(name: str, kind: bytes = tarfile.SYMTYPE) -> Any:
    """Return a function that adds a link, or another member without content, to the archive."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, "/etc/passwd"
    files = written(game([3]), "bigfish")
    return lambda folder: _put(folder, EXPERT, lzma.compress(tarred(files, entry), preset=0))


class _Foreign:
    """Pickles as a call of `print`."""

    def __reduce__(self) -> Any:
        return print, ("run",)


def _pickled(value: Any) -> Any:
    """Return a function that stores a pickled value as the file of an episode."""

    def corrupt(folder: Path) -> None:
        with io.BytesIO() as out:
            np.save(out, np.array(value, object), allow_pickle=True)
            files = {"bigfish/20220607T010203_0_3_0_0.00.npy": out.getvalue()}
        _put(folder, EXPERT, lzma.compress(tarred(files), preset=0))

    return corrupt


def _flip(data: bytes) -> bytes:
    """Invert the byte in the middle."""
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :]


def _frames(value: float) -> np.ndarray:
    """Return frames with a pixel of this value, [5, 3, 64, 64]."""
    frames = np.full((5, 3, 64, 64), 7, np.float32)
    frames[2, 1, 5, 6] = value
    return frames


_XML = b'<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>'
_LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n"
_ends = np.arange(4)
FAULTS = {
    "frames without the last one": Fault(
        _with(lambda: play(4, 2, observations=_frames(1)[:4])),
        "observations are [4, 3, 64, 64], but the file name states [5,",
    ),
    "frames below 0": Fault(_with(lambda: play(4, 2, observations=_frames(-1))), "row 2 have -1.0, expected integers"),
    "frames above 255": Fault(_with(lambda: play(4, 2, observations=_frames(256))), "row 2 have 256.0"),
    "frames with values between integers": Fault(
        _with(lambda: play(4, 2, observations=_frames(0.5))), "row 2 have 0.5"
    ),
    "frames that are not numbers": Fault(_with(lambda: play(4, 2, observations=_frames(np.nan))), "row 2 have nan"),
    "frames of another size": Fault(
        _with(lambda: play(4, 2, observations=np.zeros((5, 64, 64, 3), np.float32))), "observations are [5, 64, 64, 3]"
    ),
    "another length than its name states": Fault(
        _with(lambda: play(4, 2, name="20220607T010203_2_5_0_0.00.npy")),
        "actions are [4, 1], but the file name states [5, 1]",
    ),
    "another return than its name states": Fault(
        _with(lambda: play(4, 2, rewards=np.ones((4, 1), np.float32))), "the return is 4.00, but the name states"
    ),
    "more steps than a file can hold": Fault(
        _with(lambda: play(4, 2, name="20220607T010202_2_99999999_7_0.00.npy")), "the name states 99,999,999 steps"
    ),
    "a name without its parts": Fault(
        _with(lambda: play(4, 2, name="episode.npy")), "the name is not <time>_<episode>"
    ),
    "an end inside": Fault(_with(lambda: play(4, 2, dones=_ends == 1)), "dones of row 1 of 4 is True"),
    "no end": Fault(_with(lambda: play(4, 2, dones=_ends < 0)), "dones of row 3 of 4 is False"),
    "rewards that are not numbers": Fault(
        _with(lambda: play(4, 2, rewards=np.full((4, 1), np.nan, np.float32))), "reward 0 is nan"
    ),
    "an action that Procgen does not have": Fault(
        _with(lambda: play(4, 2, actions=_ends[:, None] * 8)), "action 2 is 16"
    ),
    "a missing column": Fault(_with(lambda: play(4, 2, rewards=None)), "it has no rewards"),
    "a foreign name in a pickle": Fault(_pickled({"observations": _Foreign()}), "print"),
    "a pickle of something else": Fault(_pickled(["a", "list"]), "expected a dict of arrays"),
    "a member that leads out of the archive": Fault(_link("../x", tarfile.REGTYPE), "leads out of the archive"),
    "a link": Fault(_link("bigfish/x"), "bigfish/x is a symbolic link"),
    "a file that is neither": Fault(
        lambda folder: _put(
            folder, EXPERT, lzma.compress(tarred({"bigfish/20220607T010203_0_3_0_0.00.npy": b"text, no array"}))
        ),
        "it is not an .npz file or a .npy file",
    ),
    "the archive of another game": Fault(
        lambda folder: _put(folder, EXPERT, lzma.compress(tarred(written(game([3]), "maze")))),
        "the dataset has no step",
    ),
    "a cut archive": Fault(_archive(lambda data: data[:-200]), "the end of an xz stream"),
    "a changed byte": Fault(_archive(_flip), "the xz stream is damaged"),
    "an XML error": Fault(_archive(lambda _: _XML), "XML"),
    "a git-LFS pointer": Fault(_archive(lambda _: _LFS), "git-LFS pointer"),
}
FAULTS_OF_LEVELS = {
    "an XML error": Fault(_archive(lambda _: _XML, LEVELS), "XML"),
    "a cut archive": Fault(_archive(lambda data: data[:400_000], LEVELS), "is truncated"),
    "no file of the game": Fault(
        lambda folder: _put(folder, LEVELS, tarred(written(game([3]), "maze"))), "the dataset has no step"
    ),
}
_SMALL = {"datasets_rl.sources.gen_dgrl._SHARD_STEPS"}
CASES = [
    Case(
        "gen_dgrl/bigfish-1M_E",
        _expert,
        _served,
        faults=FAULTS,
        many=_many_expert,
        small=dict.fromkeys(_SMALL, 300_000),
    ),
    Case("gen_dgrl/maze-25M", _log, _served, small=dict.fromkeys(_SMALL, 10_000_000)),
    Case(
        "gen_dgrl/heist-level_1_E",
        _levels,
        _served,
        faults=FAULTS_OF_LEVELS,
        many=_many_levels,
        small=dict.fromkeys(_SMALL, 25_000),
    ),
]
