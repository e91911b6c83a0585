"""Responses and tables in the format of OpenML's API, and a loopback server of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
from raw.case import Case, Fault
from servers import Call, File, Server, Status, serve

from datasets_rl.ted.episode import Episode

__all__ = ["CASES", "SEVEN", "Table", "answer", "draw", "openml", "put"]

API = "api/v1/json/data"
NUMBERS = {"adult": 179, "mushroom": 24, "covertype": 1596, "shuttle": 40685, "MagicTelescope": 1120, "drawn": 77}


@dataclass(frozen=True)
class Table:
    """A dataset of OpenML; each column is numeric or has a list of possible values."""

    name: str
    version: int
    columns: Mapping[str, Sequence[str] | None]
    """The possible values of each nominal column; None for a numeric column."""
    rows: Sequence[Sequence[str]]
    target: str
    aside: Sequence[str] = ()
    """Names of the columns that only number the rows."""
    described: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the description that replace the defaults."""
    quoted: bool = True
    """Whether texts with spaces are in single quotes; otherwise they are not quoted."""


def put(folder: Path, table: Table) -> Path:
    """Write the responses of OpenML about a dataset, and its table; return the path of the table."""
    number = NUMBERS[table.name]
    place = folder / f"data/v1/download/{number + 5000}/{table.name}.arff"
    write(place, arff(table))
    listed = {"did": number, "name": table.name, "version": table.version, "status": "active", "format": "ARFF"}
    search = f"{API}/list/data_name/{table.name.lower()}/limit/2/data_version/{table.version}"
    write(folder / search, json.dumps({"data": {"dataset": [listed]}}))
    description = {
        "id": str(number),
        "name": table.name,
        "version": str(table.version),
        "description": "**Author**: anonymous",
        "format": "ARFF",
        "creator": ["A. Uthor", "B. Uthor"],
        "licence": "Public",
        "url": f"https://www.openml.org/data/v1/download/{number + 5000}/{table.name}.arff",
        "file_id": str(number + 5000),
        "default_target_attribute": table.target,
        "status": "active",
        "md5_checksum": hashlib.md5(place.read_bytes()).hexdigest(),
        **table.described,
    }
    write(folder / f"{API}/{number}", json.dumps({"data_set_description": description}))
    features = [feature(table, place, name) for place, name in enumerate(table.columns)]
    write(folder / f"{API}/features/{number}", json.dumps({"data_features": {"feature": features}}))
    # scikit-learn also requests the number of samples.
    quality = [{"name": "NumberOfInstances", "value": f"{len(table.rows)}.0"}]
    write(folder / f"{API}/qualities/{number}", json.dumps({"data_qualities": {"quality": quality}}))
    return place


def answer(folder: Path, address: str) -> bytes:
    """Return what OpenML answers to a request of scikit-learn."""
    place = folder / unquote(urlsplit(address).path).lstrip("/")
    # Before 1.5, scikit-learn requests a table by its number alone.
    return (next(place.iterdir()) if place.is_dir() else place).read_bytes()


def feature(table: Table, place: int, name: str) -> dict[str, Any]:
    """Return the description of a column."""
    values = table.columns[name]
    found: dict[str, Any] = {"index": str(place), "name": name, "data_type": "numeric" if values is None else "nominal"}
    if values is not None:
        found["nominal_value"] = list(values)
    missing = sum(row[place : place + 1] == ("?",) for row in table.rows)
    return {
        **found,
        "is_target": str(name == table.target).lower(),
        "is_ignore": "false",
        "is_row_identifier": str(name in table.aside).lower(),
        "number_of_missing_values": str(missing),
    }


def arff(table: Table) -> str:
    """Return the table in ARFF."""

    def text(value: str) -> str:
        return f"'{value}'" if table.quoted and " " in value else value

    lines = ["% made for a test", f"@relation {table.name}", ""]
    for name, values in table.columns.items():
        kind = "numeric" if values is None else "{" + ",".join(map(text, values)) + "}"
        lines.append(f"@attribute {text(name)} {kind}")
    lines += ["", "@data", *(",".join(map(text, row)) for row in table.rows)]
    return "\n".join(lines) + "\n"


def write(place: Path, text: str) -> None:
    """Write a text file and its parent folders."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")


def draw(name: str, version: int, shape: str, target: str, rows: int, *, missing: float = 0.0, seed: int = 0) -> Table:
    """Generate a table.

    `shape` has a word for each column: ``age`` is numeric, ``sex:a|b`` is nominal with the values a and b, which includes
    the target.
    """
    rng = np.random.default_rng(seed)
    columns = {
        word.partition(":")[0]: word.partition(":")[2].split("|") if ":" in word else None for word in shape.split(";")
    }
    drawn = []
    for column, values in columns.items():
        if values is None:
            # Integers, values with few digits, and values of very different magnitudes.
            numbers = rng.normal(size=rows) * 10.0 ** rng.integers(0, 4)
            one = [f"{number:.0f}" if len(drawn) % 2 else f"{number:.5g}" for number in numbers]
        else:
            # The last declared value never occurs.
            one = [values[number] for number in rng.integers(max(1, len(values) - (column != target)), size=rows)]
        lacks = rng.random(rows) < missing
        drawn.append(
            [
                "?" if lack and column not in {"income", "class"} else value
                for value, lack in zip(one, lacks, strict=True)
            ]
        )
    return Table(name, version, columns, [*zip(*drawn, strict=True)], target)


SEVEN: Mapping[str, Table] = {
    "adult": draw(
        "adult",
        1,
        "age:0|1|2|3|4|10;workclass:Private|Self-emp-not-inc|State gov|Never-worked;fnlwgt;education-num;"
        "occupation:Tech-support|Craft-repair|Sales|Armed-Forces;sex:Male|Female|Other;income:<=50K|>50K",
        "income",
        300,
        missing=0.05,
    ),
    "mushroom": draw(
        "mushroom", 1, "cap:x|b|s|f;veil-type:p|u;stalk-root:e|c|b|r|z;class:e|p", "class", 200, missing=0.03, seed=1
    ),
    "covertype": draw(
        "covertype",
        3,
        "Elevation;Aspect;Wilderness_Area1:0|1|2;Soil_Type7:0|1;class:1|2|3|4|5|6|7",
        "class",
        250,
        seed=2,
    ),
    "shuttle": draw("shuttle", 1, "A1;A2;A3;A4;class:1|2|3|4|5", "class", 220, seed=3),
    "MagicTelescope": draw("MagicTelescope", 1, "fLength;fWidth;fAlpha;class:g|h", "class", 210, seed=4),
}


@dataclass
class _Answers:
    """Responses of OpenML from a folder; a path without a file gets status 412, as for an invalid request."""

    folder: Path

    def answer(self, call: Call) -> None:
        """Respond with the file of the path."""
        path = unquote(urlsplit(call.path).path).lstrip("/")
        place = self.folder / path
        if place.is_file():
            File(place).answer(call)
        elif path.startswith("api/"):
            body = json.dumps({"error": {"code": "372", "message": "No results"}}).encode()
            Status(412, body=body).answer(call)
        else:
            Status(404).answer(call)


class _AnyPath(dict[str, Any]):
    """Maps every path to the same response."""

    def get(self, path: str, default: Any = None) -> Any:
        """Return the response, for any path."""
        del path, default
        return self["any"]


@contextmanager
def openml(folder: Path) -> Iterator[Server]:
    """Run a server of the responses in a folder."""
    with serve({}) as server:
        server.paths = _AnyPath(any=_Answers(folder))
        yield server


@contextmanager
def served(folder: Path) -> Iterator[Mapping[str, str]]:
    """Serve the responses as a mirror."""
    with openml(folder) as server:
        yield {"RLDS_MIRRORS": f"openml={server.url}"}


SMALL = Table(
    "drawn",
    2,
    {"row": None, "size, in mm": None, "color": ("red", "light blue", "green"), "kind": ("b", "a"), "flat": None},
    [
        ("1", "2.5", "red", "a", "3"),
        ("2", "?", "red", "b", "3"),
        ("3", "7.5", "light blue", "b", "3"),
        ("4", "5", "?", "a", "3"),
    ],
    "kind",
    aside=("row",),
)


def written(folder: Path) -> list[Episode]:
    """Write four rows, a row of them without a value; return the episodes of the other three.

    The mean of 2.5, 7.5 and 5 is 5, and their standard deviation is the root of 25/6; "flat" is constant.
    """
    put(folder, SMALL)
    deviation = (25 / 6) ** 0.5
    # size, flat, color=light blue, color=red, color missing
    samples = [[-2.5 / deviation, 0, 0, 1, 0], [2.5 / deviation, 0, 1, 0, 0], [0, 0, 0, 0, 1]]
    return [bandit(sample, action, row) for sample, action, row in zip(samples, (0, 1, 0), (0, 2, 3), strict=True)]


def bandit(sample: Sequence[float], action: int, row: int) -> Episode:
    """Return the episode of a row: a single step with reward 1."""
    steps = {
        ("observation",): np.array([sample], np.float64),
        ("action",): np.array([action]),
        ("next", "reward"): np.ones((1, 1), np.float32),
        ("next", "terminated"): np.ones((1, 1), bool),
        ("next", "truncated"): np.zeros((1, 1), bool),
    }
    return Episode(steps, {}, metadata={"source": row})


def changed(**fields: Any) -> Callable[[Path], object]:
    """Return a function that writes the dataset again with other fields."""
    return lambda folder: put(folder, replace(SMALL, **fields))


def row_instead(*values: str) -> Callable[[Path], object]:
    """Return a function that replaces the second row of the table."""
    return changed(rows=[SMALL.rows[0], values, *SMALL.rows[2:]])


def described(**said: Any) -> Callable[[Path], object]:
    """Return a function that replaces fields of the description."""
    return changed(described=said)


def answered(path: str, text: str) -> Callable[[Path], object]:
    """Return a function that replaces a response."""
    return lambda folder: write(folder / path, text)


def without(path: str) -> Callable[[Path], object]:
    """Return a function that deletes a response."""
    return lambda folder: (folder / path).unlink()


TABLE = "data/v1/download/5077/drawn.arff"


def sparse(folder: Path) -> None:
    """Replace the rows by a sparse row."""
    rewrite(folder, (folder / TABLE).read_text().partition("@data")[0] + "@data\n{0 1, 2 red}\n")


def edited(folder: Path) -> None:
    """Change a value of the table without its digest."""
    place = folder / TABLE
    place.write_text(place.read_text().replace("7.5", "7.6"))


def rewrite(folder: Path, text: str) -> None:
    """Replace the text of the table and its digest."""
    about = folder / f"{API}/77"
    before = hashlib.md5((folder / TABLE).read_bytes()).hexdigest()
    about.write_text(about.read_text().replace(before, hashlib.md5(text.encode()).hexdigest()))
    (folder / TABLE).write_text(text)


def texts(folder: Path) -> None:
    """Declare a column as text, in the table and in the list of features."""
    rewrite(folder, (folder / TABLE).read_text().replace("@attribute flat numeric", "@attribute flat string"))
    answer = folder / f"{API}/features/77"
    numeric = '"name": "flat", "data_type": "numeric"'
    answer.write_text(answer.read_text().replace(numeric, numeric.replace("numeric", "string")))


SEARCH = f"{API}/list/data_name/drawn/limit/2/data_version/2"
FAULTS = {
    "a table that was edited": Fault(edited, "md5"),
    "an inactive dataset": Fault(described(status="deactivated"), "'deactivated', expected active"),
    "a version that OpenML does not have": Fault(without(SEARCH), "drawn"),
    "an error instead of an answer": Fault(answered(SEARCH, '{"error": {"code": "372"}}'), "has no data.dataset"),
    "a web page instead of an answer": Fault(answered(SEARCH, "<!DOCTYPE html><title>x</title>"), "web page"),
    "an answer that is not valid JSON": Fault(answered(f"{API}/77", "{"), "is not valid JSON"),
    "an answer about another dataset": Fault(described(name="other"), "the name 'other', expected drawn"),
    "a sparse table": Fault(described(format="Sparse_ARFF"), "the format 'Sparse_ARFF', expected arff"),
    "sparse rows": Fault(sparse, "row 0 is sparse"),
    "an address on this machine": Fault(described(url="file:///etc/passwd"), "expected a web address"),
    "an address with parent folders": Fault(described(url="https://x.example/../../../etc/passwd"), ".."),
    "a row with a missing field": Fault(row_instead("2", "3", "red", "b"), "row 1 has 4 fields, expected 5"),
    "a row with an additional field": Fault(
        row_instead("2", "3", "red", "b", "3", "4"), "row 1 has 6 fields, expected 5"
    ),
    "a category that is not declared": Fault(
        row_instead("2", "3", "pink", "b", "3"), "color is 'pink', expected one of"
    ),
    "a text instead of a number": Fault(
        row_instead("2", "three", "red", "b", "3"), "is 'three', expected a finite number"
    ),
    "an empty number": Fault(row_instead("2", "", "red", "b", "3"), "is '', expected a finite number"),
    "a NaN": Fault(row_instead("2", "NaN", "red", "b", "3"), "is 'NaN', expected a finite number"),
    "an infinite number": Fault(row_instead("2", "1e999", "red", "b", "3"), "expected a finite number"),
    "numbers too large to scale": Fault(row_instead("2", "1e308", "red", "b", "3"), "too large"),
    "a class that is a number": Fault(
        changed(target="flat"), "the class is flat (numeric), expected one nominal column"
    ),
    "no class": Fault(changed(target=""), "the class is none"),
    "a column of texts": Fault(texts, "flat is of type string"),
    "columns that are not those that OpenML lists": Fault(
        answered(f"{API}/features/77", json.dumps({"data_features": {"feature": [feature(SMALL, 0, "row")]}})),
        "OpenML lists 1 columns, the file has 5",
    ),
    "features that cannot be understood": Fault(
        answered(f"{API}/features/77", '{"data_features": {"feature": [{"index": "x"}]}}'), "cannot be parsed"
    ),
    "no row with all values": Fault(
        changed(rows=[("1", "?", "red", "a", "3")]), "it has 1 rows, but no row has all values"
    ),
    "no row": Fault(changed(rows=[]), "it has 0 rows, but no row has all values"),
}


def many(folder: Path, size: int) -> None:
    """Write a table with the columns of covertype: 10 numeric, 44 indicators, 7 classes, about 137 bytes per row."""
    rng = np.random.default_rng(0)
    names = {f"n{place}": None for place in range(10)} | {f"b{place}": ("0", "1") for place in range(44)}
    rows = size // 137
    numbers, classes = rng.integers(0, 4000, (rows, 10)), rng.integers(1, 8, (rows, 1))
    indicators = np.zeros((rows, 44), np.int64)
    indicators[np.arange(rows), rng.integers(0, 4, rows)] = 1
    indicators[np.arange(rows), 4 + rng.integers(0, 40, rows)] = 1
    values = np.char.mod("%d", np.hstack([numbers, indicators, classes]))
    put(folder, Table("covertype", 3, {**names, "class": tuple("1234567")}, values.tolist(), "class"))


def trees(folder: Path) -> list[Episode]:
    """Write a small table with the columns of covertype, and return the episodes that must be stored."""
    table = SEVEN["covertype"]
    put(folder, table)
    numbers = np.array([row[:-1] for row in table.rows], np.float64)
    samples = numbers - numbers.mean(axis=0)
    # Soil_Type7 is always 0.
    samples[:, :3] /= numbers[:, :3].std(axis=0)
    classes = [sorted({row[-1] for row in table.rows}).index(row[-1]) for row in table.rows]
    return [bandit(sample, action, row) for row, (sample, action) in enumerate(zip(samples, classes, strict=True))]


CASES = [
    Case(id="openml/drawn@2", write=written, served=served, faults=FAULTS, manifest={"license": "Public"}),
    Case(id="openml/covertype", write=trees, served=served, many=many, lossy={"observation": 1e-12}),
]
