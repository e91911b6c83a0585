"""Open X-Embodiment in its two formats: TFRecords with features.json, and tar archives of pickled episodes.

Both are written from the same generated episodes (`Drawn`) with protobuf, `tarfile`, `pickle` and pillow, without the
code under test.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
from raw import tfrecords
from raw.case import Case, Fault
from raw.images import decoded, encoded, scene
from upstreams import bucket, hub

from datasets_rl.ted.episode import Episode, TextStates

__all__ = ["CASES", "HUB", "NAME", "SIDE", "Drawn", "draw", "features", "golden", "write_archives", "write_records"]

NAME = "cmu_stretch"
HUB = "nyu_rot_dataset_converted_externally_to_rlds"
REPO = "jxu124/OpenX-Embodiment"
VERSION = "0.1.0"
SIDE = 40
INSTRUCTIONS = ("open the lid", "", "ö → ü")
LENGTHS = (5, 3, 2, 6, 4)


@dataclass
class Drawn:
    """A generated episode of n steps; its last step has an observation, and its other values are ignored."""

    images: list[bytes]
    """JPEG images of SIDE x SIDE x 3."""
    depth: np.ndarray
    """[n, SIDE, SIDE, 1], uint16."""
    metres: np.ndarray
    """[n, 8, 8, 1], float32."""
    state: np.ndarray
    """[n, 4], float32."""
    tokens: np.ndarray
    """[n, 3], int32."""
    vector: np.ndarray
    """[n, 3], float32; a part of the action."""
    close: np.ndarray
    """[n], bool; a part of the action."""
    reward: np.ndarray
    grid: np.ndarray
    """[n, 2, 2], float32."""
    instruction: str
    terminal: bool
    path: str
    success: bool
    marked: bool = True
    """Whether is_last is set at the last step."""

    def __len__(self) -> int:
        return len(self.images)


def draw(steps: int, seed: int = 0, side: int = SIDE) -> Drawn:
    """Generate an episode."""
    rng = np.random.default_rng(seed)
    one = np.float32
    reward = rng.normal(size=steps).astype(one)
    reward[-1] = 0
    return Drawn(
        [encoded(scene(side, side, 3, 1000 * seed + at), "JPEG", quality=90) for at in range(steps)],
        rng.integers(0, 1 << 16, (steps, side, side, 1), np.uint16),
        rng.normal(size=(steps, 8, 8, 1)).astype(one),
        rng.normal(size=(steps, 4)).astype(one),
        rng.integers(0, 1000, (steps, 3)).astype(np.int32),
        rng.normal(size=(steps, 3)).astype(one),
        rng.random(steps) < 0.5,
        reward,
        rng.normal(size=(steps, 2, 2)).astype(one),
        INSTRUCTIONS[seed % len(INSTRUCTIONS)],
        bool(seed % 2),
        f"/data/episode_{seed}.npy",
        bool(seed % 3),
    )


def golden(drawn: Drawn, number: int, *, rich: bool = True, kept: bool = False) -> Episode:
    """Return the episode that must be stored: all steps but the last, of which the observation is the final state.

    Args:
        drawn: The generated episode.
        number: The number of the episode in the upstream.
        rich: Whether the upstream has every field, as the records have.
        kept: Whether the last step is stored as a transition, too.
    """
    void = drawn.marked and not kept
    rows = len(drawn) - void
    end = np.zeros((rows, 1), np.bool_)
    end[-1] = drawn.terminal and drawn.marked
    cut = np.zeros((rows, 1), np.bool_)
    cut[-1] = not end[-1]
    first = np.arange(rows) == 0
    steps: dict[Any, Any] = {
        ("is_init",): first,
        ("action", "world_vector"): drawn.vector[:rows],
        ("action", "close"): drawn.close[:rows],
        ("next", "reward"): drawn.reward[:rows, None],
        ("next", "terminated"): end,
        ("next", "truncated"): cut,
        ("discount",): np.ones(rows, np.float32),
        ("language_instruction",): TextStates.from_texts([drawn.instruction] * rows),
        ("episode_metadata", "file_path"): TextStates.from_texts([drawn.path] * rows),
    }
    states: dict[Any, Any] = {
        ("observation", "image"): np.stack([decoded(image) for image in drawn.images]),
        ("observation", "state"): drawn.state,
        ("observation", "natural_language_instruction"): TextStates.from_texts([drawn.instruction] * len(drawn)),
    }
    if rich:
        states[("observation", "depth")] = drawn.depth.astype(np.int32)
        states[("observation", "metres")] = drawn.metres
        states[("observation", "tokens")] = drawn.tokens
        steps[("grid",)] = drawn.grid[:rows]
    facts = {"source": np.int64(number), "episode_metadata.success": np.bool_(drawn.success)}
    return Episode(steps, states, metadata=facts)


# --- TFRecords


def tensor(dtype: str, *shape: int, encoding: str = "none") -> dict[str, Any]:
    """Return the description of a tensor feature."""
    return {"tensor": {"shape": {"dimensions": [str(one) for one in shape]}, "dtype": dtype, "encoding": encoding}}


def image(dtype: str, *shape: int, form: str) -> dict[str, Any]:
    """Return the description of an image feature."""
    return {"image": {"shape": {"dimensions": [str(one) for one in shape]}, "dtype": dtype, "encodingFormat": form}}


def group(**features: Any) -> dict[str, Any]:
    """Return the description of a dict of features."""
    return {"pythonClassName": "FeaturesDict", "featuresDict": {"features": features}}


def many_of(feature: Any, length: int = -1) -> dict[str, Any]:
    """Return the description of a sequence of a feature."""
    return {"sequence": {"feature": feature, "length": str(length)}}


TEXT = {"pythonClassName": "Text", "text": {}}


def features(side: int = SIDE) -> dict[str, Any]:
    """Return the features.json of the records."""
    observation = group(
        image=image("uint8", side, side, 3, form="jpeg"),
        depth=image("uint16", side, side, 1, form="png"),
        metres=image("float32", 8, 8, 1, form="png"),
        state=tensor("float32", 4),
        tokens=many_of(tensor("int32")),
        natural_language_instruction=tensor("string"),
    )
    steps = group(
        action=group(world_vector=tensor("float32", 3), close=tensor("bool")),
        discount=tensor("float32"),
        grid=tensor("float32", 2, 2, encoding="zlib"),
        is_first=tensor("bool"),
        is_last=tensor("bool"),
        is_terminal=tensor("bool"),
        language_instruction=TEXT,
        observation=observation,
        reward=tensor("float32"),
    )
    whole = group(file_path=TEXT, success=tensor("bool"))
    return group(episode_metadata=whole, steps=many_of(steps))


def flat(drawn: Drawn) -> dict[str, Any]:
    """Return the features of a record."""
    steps = len(drawn)
    text = drawn.instruction.encode()
    last = np.arange(steps) == steps - 1
    pixels = [np.ascontiguousarray(one, "<f4").view(np.uint8).reshape(8, 8, 4) for one in drawn.metres]
    return {
        "episode_metadata/file_path": [drawn.path.encode()],
        "episode_metadata/success": [int(drawn.success)],
        "steps/action/close": drawn.close.astype(int).tolist(),
        "steps/action/world_vector": drawn.vector.ravel().tolist(),
        "steps/discount": [1.0] * steps,
        "steps/grid": [zlib.compress(one.tobytes()) for one in drawn.grid],
        "steps/is_first": (np.arange(steps) == 0).astype(int).tolist(),
        "steps/is_last": (last & drawn.marked).astype(int).tolist(),
        "steps/is_terminal": (last & drawn.terminal & drawn.marked).astype(int).tolist(),
        "steps/language_instruction": [text] * steps,
        "steps/observation/depth": [encoded(one) for one in drawn.depth],
        "steps/observation/image": drawn.images,
        "steps/observation/metres": [encoded(one) for one in pixels],
        "steps/observation/natural_language_instruction": [text] * steps,
        "steps/observation/state": drawn.state.ravel().tolist(),
        "steps/observation/tokens/ragged_flat_values": drawn.tokens.ravel().tolist(),
        "steps/observation/tokens/ragged_row_lengths_0": [3] * steps,
        "steps/reward": drawn.reward.tolist(),
    }


def framed(payload: bytes) -> bytes:
    """Frame a record as `tfrecords.record` does, with a faster implementation of the checksum."""
    crc = crc32c.crc32c(payload)
    return tfrecords.record(payload, ((crc >> 15) + ((crc << 17) & 0xFFFFFFFF) + 0xA282EAD8) % 2**32)


def write_records(
    root: Path,
    files: Sequence[Sequence[Any]],
    *,
    name: str = NAME,
    version: str = VERSION,
    split: str = "train",
    document: Any = None,
    more: Sequence[dict[str, Any]] = (),
) -> Path:
    """Write a version of a dataset; the episodes are `Drawn` or features by name.

    Args:
        root: The folder that the bucket serves.
        files: The episodes of each file.
        name: The id.
        version: The name of the version's folder.
        split: The split in the file names.
        document: The features.json, where it is not that of `flat`.
        more: Additional entries of `splits` in dataset_info.json.
    """
    folder = root / name / version
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "features.json").write_text(json.dumps(document or features()))
    for number, records in enumerate(files):
        payloads = [tfrecords.example(one if isinstance(one, dict) else flat(one)) for one in records]
        place = folder / f"{name}-{split}.tfrecord-{number:05d}-of-{len(files):05d}"
        place.write_bytes(b"".join(map(framed, payloads)))
    lengths = [str(len(records)) for records in files]
    info = {
        "citation": "@misc{example, title={A drawn robot}}",
        "description": "EpisodeBatch of a robot that was drawn.",
        "fileFormat": "tfrecord",
        "name": name,
        "splits": [{"name": split, "numBytes": "1", "shardLengths": lengths}, *more],
        "version": version,
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


# --- pickles


def plain(drawn: Drawn) -> dict[str, Any]:
    """Return the object that is pickled: NumPy and Python numbers, an image as `datasets` stores it, None."""
    steps = len(drawn)
    return {
        "steps": [
            {
                "action": {"world_vector": drawn.vector[at], "close": bool(drawn.close[at])},
                "discount": 1.0,
                "is_first": at == 0,
                "is_last": at == steps - 1 and drawn.marked,
                "is_terminal": at == steps - 1 and drawn.terminal and drawn.marked,
                "language_instruction": drawn.instruction,
                "language_embedding": None,
                "observation": {
                    "image": {"bytes": drawn.images[at], "path": None},
                    "natural_language_instruction": drawn.instruction.encode(),
                    "state": drawn.state[at].tolist(),
                },
                "reward": float(drawn.reward[at]),
            }
            for at in range(steps)
        ],
        "episode_metadata": {"file_path": drawn.path, "success": drawn.success},
    }


def write_archives(root: Path, files: Sequence[Sequence[Any]], *, name: str = HUB) -> Path:
    """Write tar archives; the episodes are `Drawn`, values to pickle, or bytes of a pickle."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    for shard, episodes in enumerate(files):
        with tarfile.open(folder / f"{name}_{shard:05d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for one in episodes:
                data = one if isinstance(one, bytes) else pickle.dumps(plain(one) if isinstance(one, Drawn) else one)
                put(tar, f"{name}_{number:06d}.data.pickle", data)
                number += 1
    return folder


def put(tar: tarfile.TarFile, name: str, data: bytes, kind: bytes = tarfile.REGTYPE) -> None:
    """Add a member to a tar archive."""
    member = tarfile.TarInfo(name)
    member.size, member.type = len(data), kind
    member.linkname = "/etc/passwd" if kind == tarfile.SYMTYPE else ""
    tar.addfile(member, io.BytesIO(data))


# --- cases

EPISODES = [draw(steps, seed) for seed, steps in enumerate(LENGTHS)]
EPISODES[2] = replace(EPISODES[2], marked=False)
FILES = (EPISODES[:2], EPISODES[2:3], EPISODES[3:])


def records_case(root: Path, *, kept: bool = False) -> list[Episode]:
    """Write the TFRecord files, and return the episodes that must be stored."""
    other = {"name": "test", "numBytes": "1", "shardLengths": ["1"]}
    write_records(root, FILES, more=[other])
    return [golden(one, number, kept=kept) for number, one in enumerate(EPISODES)]


def archives_case(root: Path) -> list[Episode]:
    """Write the tar archives, and return the episodes that must be stored."""
    write_archives(root, FILES)
    return [golden(one, number, rich=False) for number, one in enumerate(EPISODES)]


@contextmanager
def on_bucket(root: Path) -> Iterator[dict[str, str]]:
    """Serve the records from the bucket."""
    with bucket({"gdm-robotics-open-x-embodiment": root}) as server:
        yield {"STORAGE_EMULATOR_HOST": server.url}


@contextmanager
def on_hub(root: Path) -> Iterator[dict[str, str]]:
    """Serve the archives from the repository of the Hub."""
    with hub({REPO: root}) as server:
        yield {"HF_ENDPOINT": server.url}


def records_file(root: Path, number: int = 1) -> Path:
    """Return the path of a TFRecord file."""
    return root / NAME / VERSION / f"{NAME}-train.tfrecord-{number:05d}-of-00003"


def corrupt_bytes(change: Any, root: Path) -> None:
    """Change the bytes of a TFRecord file."""
    path = records_file(root)
    path.write_bytes(change(path.read_bytes()))


def corrupt_document(name: str, change: Any, root: Path) -> None:
    """Change the text of a JSON file."""
    path = root / NAME / VERSION / name
    path.write_text(change(path.read_text()))


def corrupt_record(change: Any, root: Path) -> None:
    """Rewrite the third episode with features that `change` modified, and with valid checksums."""
    made = flat(EPISODES[2])
    change(made)
    records_file(root).write_bytes(framed(tfrecords.example(made)))


def with_value(name: str, at: int, value: Any) -> Any:
    """Return a function that replaces a value of a feature in the third episode."""

    def change(made: dict[str, Any]) -> None:
        made[name] = [*made[name][:at], value, *made[name][at + 1 :]]

    return partial(corrupt_record, change)


def flipped(data: bytes) -> bytes:
    """Flip a bit of byte 200."""
    return data[:200] + bytes([data[200] ^ 1]) + data[201:]


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 750000000\n"
HTML = b"<!DOCTYPE html><html><body>Sign in to go on</body></html>"


def bomb(rows: int, columns: int) -> bytes:
    """Return a PNG that declares many pixels and has no pixel data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


RECORD_FAULTS = {
    "a byte of a record was changed": Fault(partial(corrupt_bytes, flipped), "does not match the CRC32C"),
    "a file of records is cut": Fault(partial(corrupt_bytes, lambda data: data[:-9]), "is truncated"),
    "a git-LFS pointer instead of records": Fault(partial(corrupt_bytes, lambda _: LFS), "git-LFS pointer"),
    "a web page instead of records": Fault(partial(corrupt_bytes, lambda _: HTML), "web page"),
    "a file has more records than dataset_info.json states": Fault(
        partial(corrupt_bytes, lambda data: data + data), "it has 2 records, but dataset_info.json states 1"
    ),
    "a file of the split is not there": Fault(lambda root: records_file(root).unlink(), "lacks file 1 of the 3"),
    "dataset_info.json has no lengths": Fault(
        partial(corrupt_document, "dataset_info.json", lambda text: text.replace("shardLengths", "lengths")),
        "shardLengths of train",
    ),
    "the files are of another format": Fault(
        partial(corrupt_document, "dataset_info.json", lambda text: text.replace('"tfrecord"', '"array_record"')),
        "array_record",
    ),
    "features.json is not valid JSON": Fault(
        partial(corrupt_document, "features.json", lambda text: text[:-5]), "not valid JSON"
    ),
    "features.json states another shape": Fault(
        partial(corrupt_document, "features.json", lambda text: text.replace('["4"]', '["7"]')), "multiple of 7"
    ),
    "features.json states a shape that no record holds": Fault(
        partial(corrupt_document, "features.json", lambda text: text.replace('["4"]', f'["{"9" * 400}"]')),
        "more values than fit into a record",
    ),
    "dataset_info.json states more episodes than there can be": Fault(
        partial(
            corrupt_document,
            "dataset_info.json",
            lambda text: text.replace('["2", "1", "2"]', f'["2", "{10**15}", "2"]'),
        ),
        "expected 1 to 10,000,000",
    ),
    "features.json states another shape of the images": Fault(
        partial(corrupt_document, "features.json", lambda text: text.replace('["40", "40", "3"]', '["41", "40", "3"]')),
        "features.json declares [41, 40, 3]",
    ),
    "features.json has an unknown encoding": Fault(
        partial(corrupt_document, "features.json", lambda text: text.replace('"zlib"', '"lzma"')), "encoded as lzma"
    ),
    "an image does not decode": Fault(
        with_value("steps/observation/image", 1, EPISODES[2].images[1][:300]), "observation.image"
    ),
    "an image is of another shape": Fault(
        with_value("steps/observation/image", 1, encoded(scene(32, 40), "JPEG")), "[32, 40, 3]"
    ),
    "an image declares a thousand million pixels": Fault(
        with_value("steps/observation/depth", 1, bomb(60_000, 60_000)), "pixels"
    ),
    "a text is not UTF-8": Fault(with_value("steps/language_instruction", 0, b"\xff\xfe"), "UTF-8"),
    "a flag is neither 0 nor 1": Fault(with_value("steps/is_last", 0, 2), "is_last"),
    "lists within the steps differ in length": Fault(
        partial(corrupt_record, lambda made: made.__setitem__("steps/observation/tokens/ragged_row_lengths_0", [2, 4])),
        "expected equal lengths",
    ),
    "a feature has too few values": Fault(
        partial(corrupt_record, lambda made: made.__setitem__("steps/reward", [1.0])), "lengths differ"
    ),
    "a feature is missing": Fault(partial(corrupt_record, lambda made: made.pop("steps/reward")), "is missing"),
}


class Hostile:
    """Pickles as a call of `os.system`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch hostile",)


def archive_file(root: Path, number: int = 1) -> Path:
    """Return the path of an archive."""
    return root / HUB / f"{HUB}_{number:05d}.tar"


def corrupt_archive(data: bytes, root: Path, *, name: str = "e.data.pickle", kind: bytes = tarfile.REGTYPE) -> None:
    """Replace an archive by an archive with a single member."""
    with tarfile.open(archive_file(root), "w") as tar:
        put(tar, name, data, kind)


def corrupt_steps(change: Any, root: Path) -> None:
    """Replace an archive by an archive of a single episode with changed steps."""
    made = plain(EPISODES[3])
    change(made["steps"])
    corrupt_archive(pickle.dumps(made), root)


def expanding_pickle() -> bytes:
    """Return a pickle of 150 bytes that expands to a list of 10 ** 9 values."""
    code = b"(lp0\nI1\na"
    for number in range(9):
        code += b"0(" + b"g%d\n" % number * 10 + b"lp%d\n" % (number + 1)
    return code + b"."


def cut_archive(root: Path) -> None:
    """Truncate an archive to 3,000 bytes."""
    path = archive_file(root)
    path.write_bytes(path.read_bytes()[:3000])


ARCHIVE_FAULTS = {
    "a pickle calls a function": Fault(partial(corrupt_archive, pickle.dumps({"steps": [Hostile()]})), "system"),
    "a pickle that expands to billions of values": Fault(
        partial(corrupt_archive, expanding_pickle()), "values, counting shared values"
    ),
    "a pickle is cut": Fault(partial(corrupt_archive, pickle.dumps(plain(EPISODES[1]))[:-100]), "truncated"),
    "a member's name leads out of the archive": Fault(
        partial(corrupt_archive, pickle.dumps({}), name="../e.data.pickle"), "../e.data.pickle"
    ),
    "a member is a link": Fault(partial(corrupt_archive, b"", kind=tarfile.SYMTYPE), "symbolic link"),
    "a member is not a pickle": Fault(partial(corrupt_archive, b"{}", name="e.json"), "names that end in .data.pickle"),
    "an archive is cut": Fault(cut_archive, "is truncated"),
    "a git-LFS pointer instead of an archive": Fault(
        lambda root: archive_file(root).write_bytes(LFS), "git-LFS pointer"
    ),
    "a web page instead of an archive": Fault(lambda root: archive_file(root).write_bytes(HTML), "web page"),
    "an episode has no steps": Fault(partial(corrupt_archive, pickle.dumps({"frames": []})), "it has no steps"),
    "a step has an additional field": Fault(
        partial(corrupt_steps, lambda steps: steps[2].__setitem__("force", 1.0)), "step 2 of 6 has force"
    ),
    "a step lacks a field": Fault(partial(corrupt_steps, lambda steps: steps[2].pop("action")), "action.world_vector"),
    "a field changes its shape": Fault(
        partial(corrupt_steps, lambda steps: steps[2]["observation"].__setitem__("state", [0.0])), "its shape changes"
    ),
    "a field is text at one step and a number at another": Fault(
        partial(corrupt_steps, lambda steps: steps[2].__setitem__("language_instruction", 3)), "text or bytes"
    ),
    "the last step has no observation": Fault(
        partial(corrupt_steps, lambda steps: steps[-1].pop("observation")), "observation.state has 5 values for 6 steps"
    ),
    "an image does not decode": Fault(
        partial(
            corrupt_steps, lambda steps: steps[2]["observation"]["image"].__setitem__("bytes", b"\xff\xd8\xff\xe0")
        ),
        "observation.image",
    ),
    "an image is of another shape": Fault(
        partial(
            corrupt_steps,
            lambda steps: steps[2]["observation"].__setitem__("image", encoded(scene(32, 40), "JPEG")),
        ),
        "[32, 40, 3]",
    ),
}


def many_records(root: Path, size: int) -> None:
    """Write about `size` bytes of records, 100 steps of 128 x 128 an episode, files of some 16 MB, at least two."""
    side = 128
    drawn = replace(draw(100, 1, side), depth=np.zeros((100, side, side, 1), np.uint16))
    made = flat(drawn)
    each = len(tfrecords.example(made))
    in_file = max(1, min(size, 16 << 20) // each)
    count = max(2, size // (each * in_file))
    write_records(root, [[made] * in_file] * count, document=features(side))


def many_archives(root: Path, size: int) -> None:
    """Write about `size` bytes of tar archives: episodes of 100 steps with images of 128 x 128, in two archives."""
    data = pickle.dumps(plain(draw(100, 1, 128)))
    write_archives(root, [[data] * max(1, size // (2 * len(data)))] * 2)


SMALL = {"datasets_rl.sources.openx._SHARD_BYTES": 10_000}
MANIFEST = {"revision": VERSION}
LOSSY = {"observation.image": 2}  # two JPEG decoders differ by rounding
CASES = [
    Case(
        f"openx/{NAME}",
        records_case,
        on_bucket,
        faults=RECORD_FAULTS,
        many=many_records,
        manifest=MANIFEST,
        small=SMALL,
        lossy=LOSSY,
    ),
    Case(
        f"openx/{NAME}",
        partial(records_case, kept=True),
        on_bucket,
        options={"images": "raw", "last-step": "transition"},
        many=many_records,
        manifest=MANIFEST,
        small=SMALL,
        lossy=LOSSY,
    ),
    Case(
        f"openx/{HUB}",
        archives_case,
        on_hub,
        options={"upstream": "hub"},
        faults=ARCHIVE_FAULTS,
        many=many_archives,
        lossy=LOSSY,
    ),
    Case(
        f"openx/{HUB}",
        archives_case,
        on_hub,
        options={"upstream": "hub", "images": "encoded"},
        many=many_archives,
        lossy=LOSSY,
    ),
]
