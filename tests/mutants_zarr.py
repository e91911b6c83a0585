"""Mutations of stores of zarr: versions 2 and 3, replay buffers with ``episode_ends``, flat arrays, and groups of episodes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from layouts import ACTION, ALL_OBS, EPISODES, FLAGS, FLAT, LENGTHS, NUMBERS, OBS, REWARD, STARTS, STATES, STEPS, STOPS
from layouts_zarr import BLOSC, REPLAY_BUFFER, pack, write_store
from mutants_oracle import FileMutant, Truth

Arrays = Mapping[str, Any]
Change = Callable[[Path, int], Any]
"""A change of a written store, of the version 2 or 3."""
BUFFER = {**REPLAY_BUFFER, "data/reward": REWARD[:, None]}
IMAGES = np.random.default_rng(5).integers(0, 255, (STEPS, 4, 6, 3)).astype(np.uint8)
FILMED = {"data/img": IMAGES, **REPLAY_BUFFER}
GROUPS = {
    f"demo_{number}/{name}": episode[name]
    for number, episode in enumerate(EPISODES)
    for name in ("observations", "actions", "rewards")
}
LAYOUTS: Mapping[str, Arrays] = {"replay buffer": BUFFER, "flat": {**FLAT, **FLAGS}, "groups": GROUPS}


ALL_LENGTHS = tuple(LENGTHS.tolist())


def truth(rows: Any = slice(None), lengths: Any = ALL_LENGTHS, **others: Any) -> Truth:
    """Return the values of some rows. `others` replaces values."""
    values = {"observation": OBS[rows], "action": ACTION[rows], "next.reward": REWARD[rows]}
    return Truth(lengths, {**values, **{name.replace("reward", "next.reward"): one for name, one in others.items()}})


RIGHT = (truth(),)
FILMED_TRUTH = (Truth(LENGTHS.tolist(), {"observation.img": IMAGES, "observation.state": OBS, "action": ACTION}),)


def without(arrays: Arrays, *names: str) -> Arrays:
    """Return arrays without some arrays."""
    return {name: values for name, values in arrays.items() if name not in names}


def ends_of(arrays: Arrays, ends: Any) -> Arrays:
    """Return a replay buffer with other ends."""
    return {**arrays, "meta/episode_ends": ends}


def of_arrays() -> Iterator[tuple[str, str, Arrays, dict[str, Any]]]:
    """Yield the layout, the name of a mutation, the arrays, and the arguments of the mutant."""
    right: dict[str, Any] = {"truths": RIGHT}
    for name, arrays in LAYOUTS.items():
        yield name, "none", arrays, right
    buffer, flat = BUFFER, LAYOUTS["flat"]
    # Ends of episodes.
    same = {
        "ends [E, 1]": STOPS[:, None],
        "ends of int32": STOPS.astype(np.int32),
        "ends of uint64": STOPS.astype(np.uint64),
        "ends of float64": STOPS.astype(float),
        "ends are last rows": STOPS - 1,
        "ends begin with 0": np.append(0, STOPS),
    }
    for mutation, ends in same.items():
        yield "replay buffer", mutation, ends_of(buffer, ends), right
    others = {
        "ends are first rows": STARTS,
        "ends are lengths": LENGTHS,
        "ends are ascending lengths": np.sort(LENGTHS),
        "ends descend": STOPS[::-1].copy(),
        "the last end is missing": STOPS[:-1],
        "ends beyond the rows": STOPS + 1,
        "one end beyond the rows": np.append(STOPS, STEPS + 4),
        "ends with fractions": STOPS + 0.5,
        "a negative end": np.array([-1, 10, 13]),
        "ends are numbers of rows": NUMBERS,
    }
    for mutation, ends in others.items():
        yield "replay buffer", mutation, ends_of(buffer, ends), {}
    yield "replay buffer", "an end twice", ends_of(buffer, np.array([4, 4, 10, 13])), {
        **right, "counted": ("no-transition",)
    }  # fmt: skip
    yield "replay buffer", "an end is missing", ends_of(buffer, STOPS[[0, 2]]), {"truths": (truth(lengths=(4, 9)),)}
    yield "replay buffer", "ends in the group data", {
        **without(buffer, "meta/episode_ends"), "data/episode_ends": STOPS
    }, right  # fmt: skip
    yield "replay buffer", "ends at the root", {**without(buffer, "meta/episode_ends"), "episode_ends": STOPS}, right
    yield "replay buffer", "lengths in place of ends", {
        **without(buffer, "meta/episode_ends"), "meta/episode_lengths": LENGTHS
    }, right  # fmt: skip
    yield "replay buffer", "lengths that contradict the ends", {**buffer, "meta/episode_lengths": LENGTHS[::-1]}, {}
    yield "replay buffer", "numbers that contradict the ends", {
        **buffer, "data/episode_index": np.repeat([0, 1, 2], [5, 5, 3])
    }, {}  # fmt: skip
    # Rows of the arrays.
    for name in ("data/action", "data/state", "data/reward"):
        values = buffer[name]
        yield "replay buffer", f"{name} is longer by one", {**buffer, name: np.concatenate([values, values[-1:]])}, {}
        yield "replay buffer", f"{name} is shorter by one", {**buffer, name: values[:-1]}, {}
    finals = Truth(LENGTHS.tolist(), {"observation": OBS, "action": ACTION})
    yield "replay buffer", "one more state for each episode", {**buffer, "data/state": ALL_OBS}, {"truths": (finals,)}
    zeros = np.zeros((7, 3))
    tail = {
        name: np.concatenate([values, zeros[:, : values.shape[1]]]) for name, values in without(
            buffer, "meta/episode_ends").items()
    }  # fmt: skip
    yield "replay buffer", "rows of zeros after the last end", ends_of(tail, STOPS), {
        **right, "counted": ("blank-rows", "unfilled-rows")
    }  # fmt: skip
    noise = {name: np.concatenate([values, values[:7] + 1]) for name, values in without(
        buffer, "meta/episode_ends").items()}  # fmt: skip
    yield "replay buffer", "other rows after the last end", ends_of(noise, STOPS), {}
    yield "replay buffer", "axes of states exchanged", {**buffer, "data/state": OBS.T.copy()}, {}
    yield "replay buffer", "axes of states and actions exchanged", {
        "data/state": OBS.T.copy(), "data/action": ACTION.T.copy(), "meta/episode_ends": STOPS
    }, {}  # fmt: skip
    yield "flat", "axes exchanged", {"observations": OBS.T.copy(), "actions": ACTION.T.copy()}, {}
    padded = np.zeros((3, 6, 3))
    yield "flat", "states [E, T, D] beside flat actions", {**flat, "observations": padded}, {}
    yield "flat", "next observations", {**flat, "next_observations": np.concatenate([s[1:] for s in STATES])}, right
    yield "flat", "next observations shifted", {**flat, "next_observations": OBS}, {}
    yield "flat", "ends and flags that contradict", {**flat, "episode_ends": np.array([5, 10, 13])}, {}
    yield "flat", "no flags", without(flat, *FLAGS), {"truths": (truth(lengths=(STEPS,)),), "counted": ("by-file",)}
    # Dtypes.
    half, single = OBS.astype(np.float16), OBS.astype(np.float32)
    yield "replay buffer", "states of float16", {**buffer, "data/state": half}, {"truths": (truth(observation=half),)}
    yield (
        "replay buffer",
        "states of big-endian float32",
        {**buffer, "data/state": OBS.astype(">f4")},
        {"truths": (truth(observation=single),)},
    )
    yield (
        "replay buffer",
        "actions of int8",
        {**buffer, "data/action": (ACTION * 10).astype(np.int8)},
        {"truths": (truth(action=(ACTION * 10).astype(np.int8)),)},
    )
    yield (
        "replay buffer",
        "actions of uint16",
        {**buffer, "data/action": (ACTION * 10 + 20).astype(np.uint16)},
        {"truths": (truth(action=(ACTION * 10 + 20).astype(np.uint16)),)},
    )
    yield "replay buffer", "actions of uint64 above int64", {
        **buffer, "data/action": (np.full((STEPS, 2), 2**63, np.uint64) + np.arange(STEPS, dtype=np.uint64)[:, None])
    }, {}  # fmt: skip
    yield (
        "replay buffer",
        "rewards of bool",
        {**buffer, "data/reward": REWARD > 0},
        {"truths": (truth(reward=(REWARD > 0) * 1.0),)},
    )
    spoiled = OBS.copy()
    spoiled[5, 1] = np.nan
    yield "replay buffer", "a NaN", {**buffer, "data/state": spoiled}, {
        "truths": (truth(observation=spoiled),), "counted": ("not-finite",)
    }  # fmt: skip
    # Images.
    filmed: dict[str, Any] = {"truths": FILMED_TRUTH}
    yield "images", "none", FILMED, filmed
    planes = IMAGES.transpose(0, 3, 1, 2).copy()
    yield (
        "images",
        "channels first",
        {**FILMED, "data/img": planes},
        {"truths": (Truth(LENGTHS.tolist(), {"observation.img": planes}), *FILMED_TRUTH)},
    )
    scaled = IMAGES.astype(np.float32)
    yield (
        "images",
        "float32 from 0 to 255",
        {**FILMED, "data/img": scaled},
        {"truths": (Truth(LENGTHS.tolist(), {"observation.img": scaled}),)},
    )
    yield "images", "one image more", {**FILMED, "data/img": np.concatenate([IMAGES, IMAGES[-1:]])}, {}
    yield "images", "one image less", {**FILMED, "data/img": IMAGES[:-1]}, {}
    yield "images", "images of every second row", {**FILMED, "data/img": IMAGES[::2]}, {}
    yield (
        "images",
        "depth beside",
        {**FILMED, "data/depth": IMAGES[..., 0].astype(np.uint16)},
        {"truths": (Truth(LENGTHS.tolist(), {**FILMED_TRUTH[0].columns, "observation.depth": IMAGES[..., 0]}),)},
    )
    yield "images", "masks beside", {**FILMED, "data/mask": IMAGES[..., 0] > 9}, filmed
    yield (
        "images",
        "the name says BGR",
        {**without(FILMED, "data/img"), "data/img_bgr": IMAGES},
        {"truths": (Truth(LENGTHS.tolist(), {"observation.img_bgr": IMAGES}),)},
    )
    # Further arrays and groups.
    yield (
        "replay buffer",
        "a copy of a group",
        {**buffer, "data_old/action": ACTION + 1, "data_old/state": OBS + 1},
        right,
    )
    yield "replay buffer", "a copy of an array", {**buffer, "data/action_old": ACTION + 1}, right
    yield "replay buffer", "a further array of other rows", {**buffer, "data/lidar": np.zeros((50, 4))}, right
    yield "replay buffer", "a further group of statistics", {**buffer, "stats/mean": np.zeros(3)}, right
    yield "replay buffer", "next to flat arrays of another run", {**buffer, "state": OBS + 1, "action": ACTION + 1}, {}
    # Groups of episodes.
    three = [{name: one[f"demo_{n}/{name}"] for name in ("observations", "actions", "rewards")} for one in [GROUPS]
             for n in range(3)]  # fmt: skip

    def named(*names: str) -> dict[str, Any]:
        return {f"{group}/{name}": v for group, one in zip(names, three, strict=True) for name, v in one.items()}

    gaps: dict[str, Any] = {"truths": RIGHT, "counted": ("missing-numbers",)}
    yield "groups", "a gap in the numbers", named("demo_0", "demo_1", "demo_3"), gaps
    yield "groups", "numbers without zeros", named("demo_2", "demo_9", "demo_10"), {"truths": RIGHT}
    yield "groups", "numbers from 1", named("demo_1", "demo_2", "demo_3"), right
    yield "groups", "numbers alone", named("0", "1", "2"), right
    yield "groups", "names without numbers", named("anna", "bert", "carl"), {}
    yield "groups", "train and test", named("train", "test", "val"), {}
    yield "groups", "actions longer by one", {
        **GROUPS, "demo_1/actions": np.concatenate([GROUPS["demo_1/actions"], ACTION[:1]])
    }, {}  # fmt: skip
    yield "groups", "rewards shorter by one", {**GROUPS, "demo_1/rewards": GROUPS["demo_1/rewards"][:-1]}, {}
    yield "groups", "an array is missing in a group", without(GROUPS, "demo_1/rewards"), {}
    yield "groups", "actions are missing in a group", without(GROUPS, "demo_1/actions"), {}
    yield (
        "groups",
        "another dtype in a group",
        {**GROUPS, "demo_1/actions": GROUPS["demo_1/actions"].astype("f4")},
        {"truths": (Truth(LENGTHS.tolist(), {"action": ACTION}, loss=1e-6),)},
    )
    yield "groups", "a further array in a group", {**GROUPS, "demo_1/extra": np.zeros(6)}, right
    yield "groups", "a further group", {**GROUPS, "stats/mean": np.zeros(3)}, right
    yield "groups", "a copy of a group", {**GROUPS, **{f"demo_1_old/{k}": v + 1 for k, v in three[1].items()}}, {}


CHUNKS: Mapping[str, int] = {"chunks of 1 row": 1, "chunks of 5 rows": 5, "a chunk larger than the array": 100}


def name_of(arrays: Arrays, kind: str) -> str:
    """Return the name of the array of a field."""
    names = {
        "action": ("data/action", "actions", "demo_1/actions"),
        "reward": ("data/reward", "rewards", "demo_1/rewards"),
    }
    names["state"] = ("data/state", "observations", "demo_1/observations")
    return next(name for name in names[kind] if name in arrays)


def chunk(folder: Path, name: str, number: int, version: int) -> Path:
    """Return the file of the chunk of some rows."""
    axes = len(document(folder, name, version)["shape"])
    index = [str(number), *["0"] * (axes - 1)]
    return folder / name / (".".join(index) if version == 2 else "/".join(["c", *index]))


def document(folder: Path, name: str, version: int) -> dict[str, Any]:
    """Return the metadata of an array."""
    found: dict[str, Any] = json.loads((folder / name / (".zarray" if version == 2 else "zarr.json")).read_text())
    return found


def redefined(folder: Path, name: str, version: int, **members: Any) -> None:
    """Change the metadata of an array."""
    path = folder / name / (".zarray" if version == 2 else "zarr.json")
    path.write_text(json.dumps({**document(folder, name, version), **members}))


def attributes(folder: Path, name: str, version: int, **values: Any) -> None:
    """State attributes of an array."""
    if version == 2:
        (folder / name / ".zattrs").write_text(json.dumps(values))
    else:
        redefined(folder, name, version, attributes=values)


def consolidate(folder: Path, version: int, change: Callable[[str, dict[str, Any]], dict[str, Any] | None]) -> None:
    """Write consolidated metadata, of changed documents. None leaves out a document."""
    if version == 2:
        keys = {path.relative_to(folder).as_posix(): json.loads(path.read_text()) for path in folder.rglob(".z*")}
        kept = {key: one for key, document in keys.items() if (one := change(key, document)) is not None}
        (folder / ".zmetadata").write_text(json.dumps({"zarr_consolidated_format": 1, "metadata": kept}))
        return
    own = {
        path.parent.relative_to(folder).as_posix(): json.loads(path.read_text()) for path in folder.rglob("zarr.json")
    }
    kept = {key: one for key, document in own.items() if key != "." and (one := change(key, document)) is not None}
    members = {"kind": "inline", "must_understand": False, "metadata": kept}
    (folder / "zarr.json").write_text(json.dumps({**own["."], "consolidated_metadata": members}))


def of_files() -> Iterator[tuple[str, Change, dict[str, Any]]]:
    """Yield the name of a mutation of a written store, the change, and the arguments of the mutant. LAYOUT names an array."""
    right: dict[str, Any] = {"truths": RIGHT}
    for kind in ("action", "state"):
        yield f"a chunk of {kind} is missing", lambda f, n, v: chunk(f, n, 0, v).unlink(), {"kind": kind}
        yield f"every chunk of {kind} is missing", lambda f, n, v: [
            chunk(f, n, number, v).unlink() for number in range(4) if chunk(f, n, number, v).exists()
        ], {"kind": kind}  # fmt: skip
    yield "a chunk of rewards is missing", lambda f, n, v: chunk(f, n, 0, v).unlink(), {
        "kind": "reward", "counted": ("unwritten-chunks",), "blank": 0.0
    }  # fmt: skip
    yield "a chunk of rewards is missing, and the fill value is 7", lambda f, n, v: [
        chunk(f, n, 0, v).unlink(), redefined(f, n, v, fill_value=7.0)
    ], {"kind": "reward", "counted": ("unwritten-chunks",), "blank": 7.0}  # fmt: skip
    yield "a chunk of rewards is missing, and the fill value is NaN", lambda f, n, v: [
        chunk(f, n, 0, v).unlink(), redefined(f, n, v, fill_value="NaN")
    ], {"kind": "reward", "counted": ("unwritten-chunks",), "blank": np.nan}  # fmt: skip
    yield "a chunk of action is cut", lambda f, n, v: chunk(f, n, 0, v).write_bytes(
        chunk(f, n, 0, v).read_bytes()[:-3]
    ), {"kind": "action"}  # fmt: skip
    yield "a chunk of action is empty", lambda f, n, v: chunk(f, n, 0, v).write_bytes(b""), {"kind": "action"}
    yield "two chunks exchanged by name", lambda f, n, v: shutil.copy(
        chunk(f, n, 0, v), chunk(f, n, 0, v).with_name("0 (1)")
    ), {"kind": "action", **right}  # fmt: skip
    yield "hidden files of macOS", lambda f, n, v: (f / n / "._0.0").write_bytes(b"x"), {"kind": "action", **right}
    yield "a lock file", lambda f, n, v: (f / n / ".lock").write_bytes(b""), {"kind": "action", **right}
    yield "fewer rows by the metadata", lambda f, n, v: redefined(
        f, n, v, shape=[document(f, n, v)["shape"][0] - 1, *document(f, n, v)["shape"][1:]]
    ), {"kind": "action"}  # fmt: skip
    yield "more rows by the metadata", lambda f, n, v: redefined(
        f, n, v, shape=[document(f, n, v)["shape"][0] + 1, *document(f, n, v)["shape"][1:]]
    ), {"kind": "action"}  # fmt: skip
    # A chunk may be wider than the array, and has the values of the array first.
    yield "another width by the metadata", lambda f, n, v: redefined(
        f, n, v, shape=[document(f, n, v)["shape"][0], 1]
    ), {"kind": "action", "truths": (truth(action=ACTION[:, :1]),)}  # fmt: skip
    # Attributes.
    yield (
        "a scale in the attributes",
        lambda f, n, v: attributes(f, n, v, scale_factor=0.1, add_offset=5.0),
        {"kind": "action"},
    )
    yield (
        "a fill value in the attributes",
        lambda f, n, v: attributes(f, n, v, _FillValue=float(ACTION[0, 0])),
        {"kind": "action"},
    )
    yield "units in the attributes", lambda f, n, v: attributes(f, n, v, units="rad"), {"kind": "action", **right}
    yield "dimensions in the attributes", lambda f, n, v: attributes(f, n, v, _ARRAY_DIMENSIONS=["time", "joint"]), {
        "kind": "action", **right
    }  # fmt: skip
    # Consolidated metadata.
    yield "consolidated metadata", lambda f, n, v: consolidate(f, v, lambda k, d: d), {"kind": "action", **right}

    def stale(key: str, found: dict[str, Any]) -> dict[str, Any]:
        is_action = "action" in key and "shape" in found
        return {**found, "shape": [found["shape"][0] - 2, *found["shape"][1:]]} if is_action else found

    def lost(key: str, found: dict[str, Any]) -> dict[str, Any] | None:
        return None if "action" in key else found

    yield "stale consolidated metadata, of fewer rows", lambda f, n, v: consolidate(f, v, stale), {"kind": "action"}
    yield "stale consolidated metadata, without an array", lambda f, n, v: consolidate(f, v, lost), {
        "kind": "action", **right
    }  # fmt: skip
    yield "stale consolidated metadata, with a lost array", lambda f, n, v: [
        consolidate(f, v, lambda k, d: d), shutil.rmtree(f / n)
    ], {"kind": "action"}  # fmt: skip
    yield "an array is lost", lambda f, n, v: shutil.rmtree(f / n), {"kind": "action"}
    yield "metadata of an array are lost", lambda f, n, v: (
        f / n / (".zarray" if v == 2 else "zarr.json")
    ).unlink(), {"kind": "action"}  # fmt: skip


def mutants() -> Iterator[FileMutant]:
    """Yield all mutants of stores of zarr."""
    for version in (2, 3):
        for layout, mutation, arrays, arguments in of_arrays():
            if version == 3 and any(np.asarray(one).dtype.byteorder == ">" for one in arrays.values()):
                continue
            yield FileMutant(
                mutation,
                f"{layout}, zarr {version}",
                lambda f, a=arrays, v=version: write_store(f / "data.zarr", a, v),
                **arguments,
            )
        for layout, arrays in LAYOUTS.items():
            yield from _of_chunks(layout, arrays, version)
            for mutation, change, arguments in of_files():
                yield _changed(layout, arrays, version, mutation, change, dict(arguments))
    yield from _of_forms()


def _of_chunks(layout: str, arrays: Arrays, version: int) -> Iterator[FileMutant]:
    for mutation, rows in CHUNKS.items():
        chunks = {name: [rows, *np.shape(values)[1:]] for name, values in arrays.items()}
        yield FileMutant(
            mutation,
            f"{layout}, zarr {version}",
            lambda f, c=chunks: write_store(f / "data.zarr", arrays, version, c),
            RIGHT,
        )
    columns = {name: [4, 1] for name, values in arrays.items() if np.ndim(values) == 2}
    yield FileMutant(
        "chunks of a column",
        f"{layout}, zarr {version}",
        lambda f: write_store(f / "data.zarr", arrays, version, columns),
        RIGHT,
    )


def _changed(
    layout: str, arrays: Arrays, version: int, mutation: str, change: Any, arguments: dict[str, Any]
) -> FileMutant:
    name = name_of(arrays, arguments.pop("kind"))

    def write(folder: Path) -> Path:
        store = write_store(folder / "data.zarr", arrays, version)
        change(store, name, version)
        return store

    if "blank" in arguments:
        first = int(STARTS[1]) if layout == "groups" else 0
        rewards = REWARD.copy()
        rewards[first : first + 4] = arguments.pop("blank")
        arguments["truths"] = (truth(reward=rewards),)
    return FileMutant(mutation, f"{layout}, zarr {version}", write, **arguments)


def _of_forms() -> Iterator[FileMutant]:
    """Yield other compressors, orders and containers."""
    for name in ("blosclz", "lz4", "lz4hc", "zlib", "zstd"):
        for shuffle in (0, 1, 2):
            yield FileMutant(
                f"Blosc {name}, shuffle {shuffle}",
                "replay buffer, zarr 2",
                lambda f, n=name, s=shuffle: write_store(
                    f / "data.zarr", BUFFER, compressor={**BLOSC, "cname": n, "shuffle": s}
                ),
                RIGHT,
            )
    for compressor in (None, {"id": "zlib", "level": 1}, {"id": "bz2", "level": 1}, {"id": "zstd", "level": 1}):
        yield FileMutant(
            f"compressor {compressor and compressor['id']}",
            "replay buffer, zarr 2",
            lambda f, c=compressor: write_store(f / "data.zarr", BUFFER, compressor=c),
            RIGHT,
        )
    gzip = [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "gzip", "configuration": {"level": 1}}]
    sums = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    for mutation, codecs in {"gzip, big-endian": gzip, "crc32c": sums}.items():
        yield FileMutant(
            mutation,
            "replay buffer, zarr 3",
            lambda f, c=codecs: write_store(f / "data.zarr", BUFFER, 3, codecs=c),
            RIGHT,
        )
    own = dict(BUFFER)
    for mutation, arrays, truths in (
        ("none", own, RIGHT),
        ("ends are last rows", ends_of(own, STOPS - 1), RIGHT),
        ("the last end is missing", ends_of(own, STOPS[:-1]), ()),
    ):

        def zipped(folder: Path, arrays: Arrays = arrays) -> Path:
            return pack(write_store(folder.parent / "aside.zarr", arrays), folder / "data.zarr.zip")

        yield FileMutant(mutation, "replay buffer, a zip file", zipped, truths)

    def two(folder: Path) -> Path:
        write_store(folder / "a.zarr", BUFFER)
        write_store(folder / "b.zarr", BUFFER)
        return folder

    twice = truth([*range(STEPS)] * 2, (4, 6, 3) * 2)
    yield FileMutant("a store twice", "replay buffer, zarr 2", two, (twice,), ("equal-episodes",))

    def and_zip(folder: Path) -> Path:
        pack(write_store(folder / "data.zarr", BUFFER), folder / "data.zarr.zip")
        return folder

    yield FileMutant("the same store as a zip file", "replay buffer, zarr 2", and_zip, RIGHT)

    def and_csv(folder: Path) -> Path:
        write_store(folder / "data.zarr", BUFFER)
        (folder / "log.csv").write_text("epoch,loss\n1,0.5\n2,0.4\n")
        return folder

    yield FileMutant("a CSV file beside", "replay buffer, zarr 2", and_csv, RIGHT)

    def fortran(folder: Path) -> Path:
        store = write_store(folder / "data.zarr", BUFFER, chunks={"data/action": [4, 2]}, compressor=None)
        data = np.frombuffer((store / "data/action/0.0").read_bytes(), "<f8").reshape(4, 2)
        for number in range(4):
            path = store / f"data/action/{number}.0"
            data = np.frombuffer(path.read_bytes(), "<f8").reshape(4, 2)
            path.write_bytes(data.T.copy().tobytes())
        redefined(store, "data/action", 2, order="F")
        return store

    yield FileMutant("Fortran order", "replay buffer, zarr 2", fortran, RIGHT)
