"""The contract of export formats."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.exporting import Content, ExportFormat, plan_export, run_export
from datasets_rl.format.images.base import Form
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.progress import Report
from datasets_rl.read.compressed_frames import FrameDictionary
from datasets_rl.ted.episode import EncodedImages, Episode, TextStates
from datasets_rl.ted.keys import ACTION, NEXT_REWARD, Key, dotted_name
from datasets_rl.testing.contract import Contract, listed, only, refusal
from datasets_rl.testing.stored_data import FLAGS, Trajectory, Whole, trajectory, write_dataset

__all__ = ["SIDE", "ExportCase", "ExportContract", "encoded", "write_images", "write_robot"]

SIDE = 32
"""Rows and columns of the images. Minari takes no smaller array for an image."""
RECORD = "rlds-export"
"""The record of an export names the dataset and the digest, which two exports do not share."""


@dataclass(frozen=True)
class ExportCase:
    """An export format, and a function that reads the files of the format."""

    make: Callable[[], ExportFormat]
    """Returns the format."""
    read: Callable[[Path], Mapping[Key, Any]] | None = None
    """Reads an export with the library of the project: the fields by key, [N, ...] in the order of the steps, at least the
    actions and the rewards, ``("next", "reward")``. Without `read`, a test of the format must compare the values."""


class _Counter(Report):
    """A report that counts the steps."""

    steps = 0

    @override
    def __call__(self, units: int) -> None:
        self.steps += units


def write_vectors(folder: Path, *, known: bool = True) -> StoredDataset:
    """Write three episodes of 4, 1 and 3 steps.

    The final state of the second episode is unknown if `known` is False.
    """
    episodes = [
        trajectory(steps, seed=seed, known=known or seed != 1, terminated=seed == 0)
        for seed, steps in enumerate((4, 1, 3))
    ]
    specs = {"action": {"kind": "bounded", "dtype": "float32", "shape": [2], "low": 1.0, "high": 2.0}}
    return write_dataset(folder, episodes, specs=specs, metadata={"fps": 10})


def encoded(image: NDArray[Any], form: str = "png") -> bytes:
    """Return an image as the bytes of a file."""
    from PIL import Image

    stream = BytesIO()
    Image.fromarray(image).save(stream, form)
    return stream.getvalue()


def write_robot(folder: Path, *, known: bool = True, form: str = "png") -> StoredDataset:
    """Write three episodes of a robot: nested observations, encoded images, texts, float64, info and metadata.

    Args:
        folder: The folder of the dataset.
        known: Whether all final states are known. Otherwise the final state of the second episode is not.
        form: The format of the images, png or jpeg, or the form of stored pixels, raw or compressed.
    """
    stored: Form = "raw" if form == "raw" else "compressed" if form == "compressed" else "encoded"
    camera: Key = ("observation", "camera")
    image = Column(camera, np.dtype(np.uint8), (SIDE, SIDE, 3), shared=True, form=stored)
    columns = [
        Column(("observation", "joints"), np.dtype(np.float64), (2,), shared=True),
        image,
        Column(("observation", "gripper"), np.dtype(np.int16), (), shared=True),
        Column(("action",), np.dtype(np.float32), (2,)),
        Column(("next", "reward"), np.dtype(np.float32), (1,)),
        *FLAGS,
        Column(("info", "goal"), np.dtype(np.float32), (1,), shared=True),
        Column(("task",), np.dtype(np.int32), (), text=True),
        Column(("weight",), np.dtype(np.float64), ()),
    ]
    episodes = [_robot(steps, seed, known=known or seed != 1, form=form) for seed, steps in enumerate((4, 3, 5))]
    specs = {"action": {"kind": "bounded", "dtype": "float32", "shape": [2], "low": -1.0, "high": [0.5, 1.0]}}
    dictionaries = {camera: FrameDictionary()}
    return write_dataset(folder, episodes, columns, dictionaries, specs=specs, license="MIT", metadata={"fps": 10})


def _robot(steps: int, seed: int, *, known: bool, form: str) -> Any:
    metadata: dict[str, Any] = {"seed": np.int64(100 + seed), "difficulty": np.float64(seed / 3)}
    random = np.random.default_rng(seed)
    rows, last = steps + known, (np.arange(steps) == steps - 1)[:, None]
    pixels = random.integers(0, 255, (rows, SIDE, SIDE, 3), dtype=np.uint8)
    is_encoded = form not in {"raw", "compressed"}
    images = EncodedImages([encoded(image, form) for image in pixels]) if is_encoded else pixels
    episode = Episode(
        steps={
            ("action",): random.uniform(-1, 0.5, (steps, 2)).astype(np.float32),
            ("next", "reward"): random.normal(size=(steps, 1)).astype(np.float32),
            ("next", "terminated"): last & (seed == 0),
            ("next", "truncated"): last & (seed != 0),
            ("task",): TextStates.from_texts([f'pick up "{seed}"' if step < 2 else "café" for step in range(steps)]),
            ("weight",): random.normal(size=steps),
        },
        states={
            ("observation", "joints"): random.normal(size=(rows, 2)),
            ("observation", "camera"): images,
            ("observation", "gripper"): random.integers(-300, 300, rows).astype(np.int16),
            ("info", "goal"): random.normal(size=(rows, 1)).astype(np.float32),
        },
        metadata=metadata,
    )
    return Whole(episode)


def write_images(folder: Path, *, known: bool = True, form: Form = "raw") -> StoredDataset:
    """Write two episodes of pixels, stored as an array or compressed, and of discrete actions."""
    columns = [
        Column(("pixels",), np.dtype(np.uint8), (SIDE, SIDE, 3), shared=True, form=form),
        Column(("action",), np.dtype(np.int64), ()),
        Column(("next", "reward"), np.dtype(np.float32), (1,)),
        *FLAGS,
    ]
    episodes = []
    for seed, steps in enumerate((3, 2)):
        random, last = np.random.default_rng(seed), (np.arange(steps) == steps - 1)[:, None]
        episodes.append(
            Trajectory(
                steps={
                    ("action",): random.integers(0, 4, steps),
                    ("next", "reward"): random.normal(size=(steps, 1)).astype(np.float32),
                    ("next", "terminated"): last & (seed == 0),
                    ("next", "truncated"): last & (seed == 1),
                },
                states={("pixels",): random.integers(0, 255, (steps + known, SIDE, SIDE, 3), dtype=np.uint8)},
            )
        )
    specs = {"action": {"kind": "discrete", "dtype": "int64", "shape": [], "n": 4}}
    return write_dataset(folder, episodes, columns, {("pixels",): FrameDictionary()}, specs=specs)


DATASETS: Mapping[str, Callable[[Path], StoredDataset]] = {
    "vectors": write_vectors,
    "unknown final state": lambda folder: write_vectors(folder, known=False),
    "images": write_images,
    "robot": write_robot,
}
EACH = pytest.mark.parametrize("data", DATASETS)


def content_of(path: Path) -> Any:
    """Return the content of a file, without the names and digests of the exported dataset."""
    if path.suffix in {".hdf5", ".h5"}:
        import h5py

        arrays: dict[str, Any] = {}
        with h5py.File(path) as file:
            file.visititems(
                lambda name, item: arrays.update({name: item[()]} if isinstance(item, h5py.Dataset) else {})
            )
        return arrays
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path).to_pydict()
    if path.suffix == ".json":  # the last digits of a sum depend on the order of the terms
        return json.loads(path.read_text("utf-8"), parse_float=lambda text: float(f"{float(text):.6g}"))
    if path.suffix == ".npz" and zipfile.is_zipfile(path):
        with np.load(path) as file:
            return dict(file)
    return path.read_bytes()


def files_of(out: Path) -> dict[str, Path]:
    """Return the files of an export by path, without the record of the export."""
    paths = [path for path in ([out] if out.is_file() else sorted(out.rglob("*"))) if path.is_file()]
    return {str(path.relative_to(out)): path for path in paths if RECORD not in path.name}


def different_files(one: Path, other: Path) -> list[str]:
    """Return the paths of the files that are in a single one of two exports, and of files with different contents."""
    left, right = files_of(one), files_of(other)
    return [
        name
        for name in sorted({**left, **right})
        if name not in left or name not in right or not _equal(content_of(left[name]), content_of(right[name]))
    ]


def _equal(one: Any, other: Any) -> bool:
    try:
        np.testing.assert_equal(one, other)
    except AssertionError:
        return False
    return True


def export_to(case: ExportCase, content: Content, folder: Path) -> Path:
    """Write an export into a folder, even an incomplete export, and return the path of the export."""
    exported = case.make()
    return run_export(content, exported, folder / f"out{exported.suffix}", lossy=True, show=False)


class ExportContract(Contract):
    """What every export format must do.

    A subclass has `cases`, each with a format, and with a function that reads the files of the format.
    """

    cases: ClassVar[dict[str, ExportCase]] = {}
    example = 'cases = {"csv": ExportCase(Csv, read_csv)}'

    def written(self, case: ExportCase, data: str, tmp_path: Path, **content: Any) -> tuple[StoredDataset, Path | None]:
        """Return a dataset and an export, or None if the format cannot hold the dataset."""
        stored = DATASETS[data](tmp_path / "stored")
        made = Content(stored, **content)
        if plan_export(made, case.make(), tmp_path / "out").problems:
            return stored, None
        return stored, export_to(case, made, tmp_path)

    def test_its_name_and_its_title_can_be_listed(self, case: ExportCase) -> None:
        exported = case.make()

        assert exported.name.isidentifier(), f"name is {exported.name!r}. Use a word that users type, as csv"
        assert exported.name == exported.name.lower(), f"name is {exported.name!r}. Use lowercase letters"
        assert exported.title, "title is empty. Describe the written files in a few words"
        assert "\n" not in exported.title, "title has several lines. Use a single line"
        assert exported.suffix in {"", ".h5", ".hdf5"}, (
            f"suffix is {exported.suffix!r}. Leave suffix empty to write a folder, or write an HDF5 file, of which the record of"
            " the export becomes an attribute"
        )

    @EACH
    def test_a_plan_says_what_is_lost_and_writes_nothing(self, case: ExportCase, data: str, tmp_path: Path) -> None:
        content = Content(DATASETS[data](tmp_path / "stored"))
        plan = plan_export(content, case.make(), tmp_path / "place" / "out")

        assert not (tmp_path / "place").exists(), (
            "problems, losses or estimate_bytes write files. Write in `write` only"
        )
        assert plan.bytes > 0, f"estimate_bytes returns {plan.bytes} for {content.steps} steps. Return about the size"
        for text in (*plan.problems, *plan.losses):
            assert " " in text, f"a problem or a loss is {text!r}. Say in a sentence what cannot be held"
            assert not text.endswith("."), (
                f"a problem or a loss ends with a dot: {text!r}. Problems are joined by semicolons"
            )

    @EACH
    def test_a_dataset_is_written_completely_or_refused_with_all_reasons(
        self, case: ExportCase, data: str, tmp_path: Path
    ) -> None:
        content, exported = Content(DATASETS[data](tmp_path / "stored")), case.make()
        plan = plan_export(content, exported, tmp_path / "place" / f"out{exported.suffix}")
        if plan.problems:
            with refusal(InvalidArgumentError, "cannot be exported", "a dataset with problems must be refused"):
                run_export(content, exported, plan.path, lossy=True, show=False)
            assert not plan.path.exists(), "a refused export leaves files"
            return
        out, progress = tmp_path / f"direct{exported.suffix}", _Counter()
        if not exported.suffix:
            out.mkdir()
        exported.write(content, out, progress)

        assert out.is_file() == bool(exported.suffix), (
            f"suffix is {exported.suffix!r}, and `write` writes a {'file' if out.is_file() else 'folder'}. Use either of these forms"
        )
        assert progress.steps == content.steps, (
            f"`write` reports {progress.steps} of {content.steps} steps. Call progress(steps) after each batch"
        )
        run_export(content, exported, plan.path, lossy=True, show=False)
        left = listed(path.name for path in plan.path.parent.iterdir() if path != plan.path)
        assert left == "none", f"`write` leaves {left} beside the target. Write temporary files into the target"

    @only(lambda case: case.read is not None)
    @EACH
    def test_the_values_are_read_back(self, case: ExportCase, data: str, tmp_path: Path) -> None:
        stored, out = self.written(case, data, tmp_path)
        if out is None or case.read is None:
            return
        self.check_values(case.read(out), stored, np.arange(len(stored)))

    @only(lambda case: case.read is not None)
    def test_only_the_selected_episodes_are_written(self, case: ExportCase, tmp_path: Path) -> None:
        stored, out = self.written(case, "vectors", tmp_path, episodes=np.array([0, 2]))
        if out is not None and case.read is not None:
            self.check_values(case.read(out), stored, np.array([0, 1, 2, 3, 5, 6, 7]))

    def check_values(self, found: Mapping[Key, Any], stored: StoredDataset, rows: NDArray[Any]) -> None:
        """Compare fields that were read from an export with rows of the dataset."""
        missing = {ACTION, NEXT_REWARD} - found.keys()
        assert not missing, f"`read` returns no {listed(missing)}. Return the fields by key"
        for key, values in found.items():
            expected = stored.column(key)[rows]
            array = np.asarray(values).reshape(-1, *expected.shape[1:]) if np.size(values) == expected.size else values
            assert np.shape(array) == expected.shape, (
                f"the export has {dotted_name(key)} as {list(np.shape(values))}, expected {list(expected.shape)}: write each"
                " step of the selected episodes once"
            )
            wrong = np.flatnonzero((np.asarray(array) != expected).reshape(len(expected), -1).any(1))
            assert not len(wrong), (
                f"{dotted_name(key)} of step {wrong[0]} is {np.asarray(array)[wrong[0]]}. The dataset has"
                f" {expected[wrong[0]]}: write the steps in the order of the dataset"
            )

    def test_the_division_into_batches_does_not_matter(
        self, case: ExportCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stored = write_vectors(tmp_path / "stored")
        if plan_export(Content(stored), case.make(), tmp_path / "out").problems:
            return
        outs = [export_to(case, Content(stored), tmp_path / "one")]
        monkeypatch.setattr(Content.batches, "__defaults__", (1,))
        outs.append(export_to(case, Content(stored), tmp_path / "many"))
        different = different_files(*outs)

        assert not different, (
            f"{listed(different)} of an export in several batches differs from an export in a single batch. Continue each batch where the"
            " last batch ended"
        )

    def test_images_are_held_as_the_class_states(self, case: ExportCase, tmp_path: Path) -> None:
        exported = case.make()
        problems = plan_export(Content(write_images(tmp_path / "stored")), exported, tmp_path / "out").problems

        assert exported.holds_images == (not problems), (
            f"holds_images is {exported.holds_images}, and the problems of a dataset of images are {list(problems)}. Yield a"
            " problem for images that cannot be written, and state holds_images"
        )

    @pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
    @pytest.mark.parametrize("write", ["images", "robot"])
    def test_compressed_images_are_exported_as_pixels_are(
        self, case: ExportCase, write: str, known: bool, tmp_path: Path
    ) -> None:
        if not case.make().holds_images:
            return
        make = {"images": write_images, "robot": write_robot}[write]
        outs = []
        for form in ("raw", "compressed"):
            stored = make(tmp_path / form / "toy", known=known, form=form)
            if plan_export(Content(stored), case.make(), tmp_path / "out").problems:
                return
            outs.append(export_to(case, Content(stored), tmp_path / form))
        different = different_files(*outs)

        assert not different, (
            f"{listed(different)} of compressed images differs from that of the same pixels. Read images by `pixels` of"
            " datasets_rl.exporting.content"
        )
