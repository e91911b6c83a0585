"""A dataset in Minari's layout, which ``minari.MinariDataset(folder / "data")`` and our own source open.

data/metadata.json      spaces, id, counts
data/main_data.hdf5     episode_0/{observations [T + 1], actions [T], rewards, terminations, truncations, infos [T + 1]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from typing_extensions import override

from datasets_rl.exporting.base import ExportFormat, final_losses, metadata_losses, next_losses
from datasets_rl.exporting.content import Content, info_paths, names_of, pixels, text_list, with_final_row
from datasets_rl.exporting.formats.hdf5 import write_images
from datasets_rl.format.schema import Field
from datasets_rl.progress import Report
from datasets_rl.ted.episode import EncodedImages, Episode, TextStates
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key

_VERSION = "0.5.1"
"""The version of Minari with the written layout."""
_FLAT: Mapping[Key, str] = {NEXT_REWARD: "rewards", NEXT_TERMINATED: "terminations", NEXT_TRUNCATED: "truncations"}
_IMAGE_SIDE_MIN = 32  # smaller arrays are not images for Minari
_JPEG = b"\xff\xd8\xff"


class Minari(ExportFormat):
    """A folder for Minari. JPEG images stay encoded if every image is JPEG. Otherwise pixels are written."""

    name = "minari"
    title = "a Minari dataset"

    @override
    def problems(self, content: Content) -> Iterator[str]:
        if not content.observations:
            yield "the format needs an observation, and the dataset has none"
        if not content.actions:
            yield "the format needs an action, and the dataset has none"
        fields = [*content.observations, *content.actions]
        if odd := [field for field in fields if field.read_dtype.kind == "b" and not field.shape]:
            yield f"the format has no space for single booleans, as {names_of(odd)} is"

    @override
    def losses(self, content: Content) -> Iterator[str]:
        yield from final_losses(content, "it becomes zeros, as if known")
        yield from metadata_losses(content, "seed")
        yield from next_losses(content)

    @override
    def write(self, content: Content, target: Path, progress: Report) -> None:
        data = target / "data"
        data.mkdir()
        jpeg = _keeps_jpeg(content)
        seeds = content.metadata("seed") if "seed" in content.metadata_names else None
        with h5py.File(data / "main_data.hdf5", "w", track_order=True) as file:
            for number, episode in enumerate(content):
                group = file.create_group(f"episode_{number}")
                group.attrs["id"] = number
                group.attrs["total_steps"] = len(episode)
                if seeds is not None:
                    group.attrs["seed"] = int(seeds[number])
                for name, values in _arrays(content, episode):
                    _write_array(group, name, values, jpeg=jpeg)
                progress(len(episode))
        metadata = _metadata(content, jpeg=jpeg, size=(data / "main_data.hdf5").stat().st_size)
        (data / "metadata.json").write_text(json.dumps(metadata), encoding="utf-8")


def _arrays(content: Content, episode: Episode) -> Iterator[tuple[str, Any]]:
    steps = len(episode)
    observed = {field.key for field in content.observations}
    for field in content.observations:
        values = {**episode.states, **episode.steps}[field.key]
        yield _space_path("observations", field.key), with_final_row(values, steps)
    for field in content.actions:
        yield _space_path("actions", field.key), episode.steps[field.key]
    for key, name in _FLAT.items():
        yield name, pixels(episode.steps[key]).reshape(-1)
    for key, path in info_paths(
        [field for field in (*content.infos, *content.extras) if field.key not in observed]
    ).items():
        # T rows of infos are the infos after each step. With T + 1 rows, row t belongs to step t.
        yield "/".join(("infos", *path)), with_final_row({**episode.states, **episode.steps}[key], steps)


def _space_path(root: str, key: Key) -> str:
    return "/".join((root, *_path_in_space(key)))


def _path_in_space(key: Key) -> Key:
    """Return the names below the observation or the action.

    In a dataset without an observation, all states are below it.
    """
    return key[1:] if key[0] in {"observation", "action"} else key


def _write_array(group: h5py.Group, name: str, values: Any, *, jpeg: bool) -> None:
    if isinstance(values, TextStates):
        group.create_dataset(name, data=text_list(values), dtype=h5py.string_dtype())
    elif jpeg and isinstance(values, EncodedImages):
        write_images(group.create_dataset(name, (len(values),), h5py.vlen_dtype(np.uint8)), 0, values)
    else:
        group.create_dataset(name, data=pixels(values))


def _keeps_jpeg(content: Content) -> bool:
    """Return whether all images of the spaces are JPEG files, with a known final image.

    Minari has a single flag for all.
    """
    images = [field for field in (*content.observations, *content.actions) if _is_image(field)]
    if not images or not all(field.image_form.holds_files for field in images) or not content.known.all():
        return False
    others = [field for field in content.fields if field.image_form.holds_files and field not in images]
    return not others and all(_all_jpeg(content, field.key) for field in images)


def _all_jpeg(content: Content, key: Key) -> bool:
    for batch in content.batches():
        for column in (batch.states[key], batch.final_states[key]) if key in batch.states else (batch.steps[key],):
            if not all(bytes(image[:3]) == _JPEG for image in column.images):
                return False
    return True


def _is_image(field: Field) -> bool:
    sizes = field.shape
    return field.read_dtype == np.uint8 and len(sizes) in {2, 3} and min(sizes[:2]) >= _IMAGE_SIDE_MIN


def _metadata(content: Content, *, jpeg: bool, size: int) -> dict[str, Any]:
    manifest = content.manifest
    return {
        "dataset_id": minari_id(manifest.id),
        "total_episodes": len(content.lengths),
        "total_steps": content.steps,
        "data_format": "hdf5",
        "jpeg_encoding": jpeg,
        "observation_space": json.dumps(_space(content, content.observations)),
        "action_space": json.dumps(_space(content, content.actions)),
        "minari_version": _VERSION,
        "dataset_size": round(size / 1e6, 1),
        "description": f"{manifest.id}, exported by datasets-rl. {manifest.citation}".strip(),
        **_reference_score(manifest.score),
    }


def _reference_score(score: Mapping[str, Any]) -> dict[str, float]:
    return {"ref_min_score": score["low"], "ref_max_score": score["high"]} if score else {}


def minari_id(dataset_id: str) -> str:
    """Return an id that Minari accepts: the characters outside of names are replaced, and a version is added."""
    parts = [re.sub(r"[^-\w]", "-", part, flags=re.ASCII) for part in dataset_id.split("/")]
    parts = parts[1:] if parts[0] == "minari" else parts
    return "/".join(parts) if re.search(r"-v\d+$", parts[-1]) else f"{'/'.join(parts)}-v0"


def _space(content: Content, fields: Sequence[Field]) -> dict[str, Any]:
    if len(fields) == 1 and not _path_in_space(fields[0].key):
        return _leaf_space(content, fields[0])
    tree: dict[str, Any] = {"type": "Dict", "subspaces": {}}
    for field in fields:
        node = tree
        *path, last = _path_in_space(field.key)
        for name in path:
            node = node["subspaces"].setdefault(name, {"type": "Dict", "subspaces": {}})
        node["subspaces"][last] = _leaf_space(content, field)
    return tree


def _leaf_space(content: Content, field: Field) -> dict[str, Any]:
    if field.text:
        texts = content.stored.texts(field.key)
        letters = "".join(sorted(set("".join(texts)))) or " "
        return {"type": "Text", "max_length": max(map(len, texts), default=1) or 1, "min_length": 0, "charset": letters}
    spec = content.manifest.specs.get(field.name, {})
    dtype = field.read_dtype
    if dtype.kind == "b":
        return {"type": "MultiBinary", "n": list(field.shape) if len(field.shape) > 1 else field.shape[0]}
    if spec.get("kind") == "discrete" and not field.shape and isinstance(spec.get("n"), int):
        return {"type": "Discrete", "dtype": "int64", "start": 0, "n": spec["n"]}
    low, high = (spec["low"], spec["high"]) if spec.get("kind") == "bounded" else _range(dtype)
    bounds = (np.broadcast_to(np.asarray(bound, dtype), field.shape).tolist() for bound in (low, high))
    return {
        "type": "Box",
        "dtype": dtype.name,
        "shape": list(field.shape),
        **dict(zip(("low", "high"), bounds, strict=True)),
    }


def _range(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "f":
        return -np.inf, np.inf
    return np.iinfo(dtype).min, np.iinfo(dtype).max
