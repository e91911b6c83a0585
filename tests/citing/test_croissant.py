"""croissant.json of a dataset of each source, as mlcroissant validates it, and the records that mlcroissant loads."""

from __future__ import annotations

import hashlib
import json
import logging
from itertools import islice

import datasets
import numpy as np
import pytest
from raw.case import cases_of_sources

from datasets_rl import Selection, downloading
from datasets_rl.citing import write_statement
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings

# mlcroissant uses what rdflib and pandas deprecate.
pytestmark = [
    pytest.mark.filterwarnings("ignore:ConjunctiveGraph is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame.reset_index:DeprecationWarning"),
]

CASES = [*cases_of_sources()]
KINDS = ("d4rl 0", "lerobot 0", "minari 0")
"""Cases of the default run: HDF5, Parquet with images, and a nested observation."""
ROWS = 150
"""Records that are compared: more than the block of 100 in which mlcroissant reads."""


class Messages(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


@pytest.fixture
def read():
    """A function that validates a file with mlcroissant, and returns the dataset and all errors and warnings."""
    mlcroissant = pytest.importorskip("mlcroissant", reason="pip install 'datasets-rl[test]'")
    logger, messages = logging.getLogger("absl"), Messages()

    def validated(path):
        dataset = mlcroissant.Dataset(path)
        issues = dataset.metadata.ctx.issues
        return dataset, [*issues.errors, *issues.warnings, *messages.texts]

    logger.addHandler(messages)
    yield validated
    logger.removeHandler(messages)


def converted(case, folder):
    (folder / "tree").mkdir()
    case.write(folder / "tree")
    settings = Settings(home=folder / "home", progress=False, jobs=1, retries=0)
    selection = Selection(options=dict(case.options))
    stored = downloading.download(case.id, from_local=folder / "tree", settings=settings, selection=selection)
    return stored, settings


def check_record(stored, row, record):
    """Compare a record of a step with the stored values: the bits of numbers, and texts."""
    for field in stored.schema:
        if (name := f"steps/{field.name}") not in record:
            continue
        (value,) = stored.column(field.key, row, row + 1)
        found = record[name]
        if field.text:
            assert found.decode() == stored.texts(field.key)[int(value)]
            continue
        found = np.full_like(value, np.nan) if found is None else np.array(found, value.dtype).reshape(value.shape)
        assert np.array_equal(found, value, equal_nan=value.dtype.kind == "f"), (name, row)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{name} {number}", marks=[] if f"{name} {number}" in KINDS else pytest.mark.slow)
        for name, number, case in CASES
    ],
)
def test_mlcroissant_has_no_complaint_about_a_source_and_loads_the_stored_values(case, tmp_path, read):
    folder, settings = converted(case, tmp_path)
    (written,) = write_statement(
        folder, out=tmp_path / "out", tables=True, audited=False, root=folder.parent, settings=settings
    )
    dataset, complaints = read(written.folder / "croissant.json")
    stored = StoredDataset(folder)

    assert complaints == []
    narrow = {field.name for field in stored.schema if not field.wide and not field.image_form.holds_files}
    steps = next(one for one in dataset.metadata.record_sets if one.id == "steps")
    assert {one.name for one in steps.fields} == narrow - {"next.done"}
    records = [*islice(dataset.records("steps"), ROWS)]
    assert len(records) == min(ROWS, len(stored))
    for row, record in enumerate(records):
        check_record(stored, row, record)
    # As the viewer of the hub does.
    file = str(written.folder / "parquet" / "steps.parquet")
    viewed = datasets.Dataset.from_parquet(file, cache_dir=str(tmp_path / "cache"))
    assert (len(viewed), set(viewed.features)) == (len(stored), narrow - {"next.done"})
    episodes = [*islice(dataset.records("episodes"), ROWS)]
    assert [one["episodes/length"] for one in episodes] == stored.episodes.lengths[:ROWS].tolist()


def test_without_tables_the_files_of_the_version_are_described_by_their_bytes(stored, tmp_path, read):
    (written,) = write_statement("demo/pendulum", out=tmp_path / "out", audited=False, settings=stored)
    dataset, complaints = read(written.folder / "croissant.json")
    version = StoredDataset(stored.home / "demo" / "pendulum").folder

    assert complaints == []
    assert dataset.metadata.record_sets == []
    files = {one.content_url: (one.sha256, one.content_size) for one in dataset.metadata.distribution}
    assert files == {
        path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), f"{path.stat().st_size} B")
        for path in version.glob("*.npy")
        if path.name in {"rows.npy", "episodes.npy", "final.npy"}  # the others are computed from these
    }


def test_the_fields_of_responsible_ai_are_those_that_are_known(stored, tmp_path, read):
    (written,) = write_statement("demo/pendulum", out=tmp_path / "out", audited=False, settings=stored)
    metadata = read(written.folder / "croissant.json")[0].metadata
    document = json.loads((written.folder / "croissant.json").read_text())

    assert document["conformsTo"][0] == "http://mlcommons.org/croissant/1.1"
    assert metadata.license == ["https://spdx.org/licenses/MIT"]
    assert metadata.version == f"0.0.0+{written.statement.manifest.files_digest[:12]}"
    assert metadata.data_collection_missing_data == (
        "The observation after the last action of each episode is known.; the file does not store the info after the last step of a "
        "trajectory (75 times)"
    )
    assert metadata.data_collection_raw_data.startswith("1 raw file, 482,907 bytes; pendulum.hdf5 (sha256 28713bb0")
    assert [one[:20] for one in metadata.data_preprocessing_protocol] == [
        "row i of the file is",
        "the state after the ",
        "the file does not st",
    ]
    assert (metadata.data_biases, metadata.data_social_impact, metadata.personal_sensitive_information) == (None,) * 3


@pytest.mark.parametrize("name", ["license", "citeAs", "version", "datePublished"])
def test_a_document_without_a_value_that_croissant_asks_for_has_a_complaint(stored, tmp_path, read, name):
    (written,) = write_statement("demo/pendulum", out=tmp_path / "out", audited=False, settings=stored)
    file = written.folder / "croissant.json"
    document = json.loads(file.read_text())
    del document[name]
    file.write_text(json.dumps(document))

    assert read(file)[1]
