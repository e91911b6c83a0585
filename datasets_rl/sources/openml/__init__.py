"""OpenML: tables of samples with classes, as contextual bandits.

    api/v1/json/data/list/data_name/<name>/limit/2/data_version/<version>     the number of the dataset
    api/v1/json/data/<number>                                                 address, MD5 and license of the table
    api/v1/json/data/features/<number>                                        the columns
    data/v1/download/<file>/<name>.arff                                       the table

All four are fetched like other files, so that downloads can be resumed, mirrored, or repeated without a network.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from typing_extensions import override

from datasets_rl.errors import Call, ConversionError, FetchError, Remedy, UnknownIdError
from datasets_rl.libraries import importing
from datasets_rl.sources.base import Entry, EpisodeReader, Listing, Selection, Shard, Source
from datasets_rl.ted.keys import PLAIN

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset
    from datasets_rl.fetch.upstream import Upstream

__all__ = ["SOURCE", "OpenML"]

_ID = re.compile(r"(?P<name>[A-Za-z0-9_][\w.()+,-]*)@(?P<version>[1-9]\d{0,6})", re.ASCII)
_TRUE = "true"


class OpenML(Source):
    """Source of the seven datasets that TorchRL names, and of every other dataset as ``name@version``."""

    name = "openml"
    restated = frozenset({"license", "citation", "homepage", "known_issues"})

    @override
    def listed_facts(self, name: str) -> dict[str, Any]:
        """Return the facts of an id, or of ``name@version``, which the catalog need not list.

        Raises:
            UnknownIdError: If the id is neither in the catalog nor of the form ``name@version``.
        """
        match = _ID.fullmatch(name)
        if match is None or name in self.catalog["ids"]:
            return super().listed_facts(name)
        return {"name": match["name"], "version": int(match["version"])}

    @override
    def addresses(self, name: str) -> Sequence[str]:
        dataset = self.entry(name).params["name"]
        return (f"{self.catalog['base_url']}search?type=data&q={quote(dataset)}",)

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Request the number, the description and the columns of the dataset from OpenML, see `Source.resolve`.

        Raises:
            UnknownIdError: If OpenML has no active dataset of this name and version.
            FetchError: If OpenML does not answer.
            ConversionError: If the answers of OpenML are not as expected.
        """
        del selection
        entry = self.entry(name)
        dataset, version = entry.params["name"], entry.params["version"]
        # Names are case-insensitive, as in scikit-learn.
        search = self._api_asset(f"list/data_name/{dataset.lower()}/limit/2/data_version/{version}")
        try:
            listed = _json_answer(upstream, search, entry, "data", "dataset")
        except FetchError as error:
            # OpenML answers with status 412 if there is no such dataset.
            if any("412" in reason for _, reason in error.failures):
                unknown = UnknownIdError(entry.id, known="the active datasets of OpenML")
                unknown.hint = f"{_search_page(entry)} shows the versions in use"
                raise unknown from error
            raise
        number = _dataset_number(listed, entry)
        details = self._api_asset(str(number))
        columns = self._api_asset(f"features/{number}")
        description = _json_answer(upstream, details, entry, "data_set_description")
        features = _parse_features(_json_answer(upstream, columns, entry, "data_features", "feature"), entry)
        table = _table_asset(description, entry)
        entry = _entry_from_description(entry, description)
        answers = tuple(replace(asset, size=len(upstream.text(asset).encode())) for asset in (search, details, columns))
        return Listing(
            (*answers, upstream.with_size(table)),
            (Shard((table.path,)),),
            common=tuple(asset.path for asset in answers),
            params={"features": features, "table": table.path},
            keys=PLAIN,
            entry=entry,
            revision=f"data {number}, file {description.get('file_id', table.md5 or '')}",
        )

    def open(
        self, name: str, files: Mapping[str, Path], params: Mapping[str, Any] | None = None, *, dataset_id: str = ""
    ) -> EpisodeReader:
        """Open the table, see `Source.open`.

        Raises:
            ConversionError: If the table contradicts the listed columns, or violates the format.
            MissingDependencyError: If pandas or scikit-learn is not installed.
        """
        from datasets_rl.sources.openml.reader import OpenMLReader

        # pandas reads the table, and scikit-learn scales the table.
        with importing("pandas", "openml", f"{self.name}/{name}"):
            import pandas as pd  # noqa: F401
        with importing("scikit-learn", "openml", f"{self.name}/{name}", module="sklearn"):
            import sklearn  # noqa: F401
        params = params or {}
        entry = self.entry(name)
        return OpenMLReader(dataset_id or entry.id, Path(files[params["table"]]), params["features"], entry.params)

    def _api_asset(self, path: str) -> Asset:
        from datasets_rl.fetch.asset import Asset

        path = f"api/v1/json/data/{path}"
        return Asset((f"{self.catalog['base_url']}{quote(path)}",), path, kind="JSON")


def _json_answer(upstream: Upstream, asset: Asset, entry: Entry, *names: str) -> Any:
    """Return the value at a path of names in a JSON answer."""
    about = f"OpenML's answer about {entry.params['name']}, version {entry.params['version']},"
    hint = f"try again later. {_search_page(entry)} shows what OpenML has of the dataset"
    try:
        text = upstream.text(asset)
    except FetchError as error:
        # A user who brings the file needs the name of the file. All others need the dataset of the file.
        if error.name == asset.path:
            error.name = f"{about.rstrip(',')} ({asset.path})"
            error.message = error.message.replace(asset.path, error.name, 1)
        raise
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConversionError(entry.id, [f"{about} is not valid JSON: {error}"], hint=hint) from error
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    if not value:
        raise ConversionError(entry.id, [f"{about} has no {'.'.join(names)}: {text[:80]!r}"], hint=hint)
    return value


def _search_page(entry: Entry) -> str:
    return f"https://www.openml.org/search?type=data&q={quote(entry.params['name'])}"


def _dataset_number(answer: Any, entry: Entry) -> int:
    name, version = entry.params["name"], entry.params["version"]
    datasets = [item for item in answer if isinstance(item, dict)] if isinstance(answer, list) else []
    numbers = [dataset.get("did") for dataset in datasets if str(dataset.get("version")) == str(version)]
    if len(numbers) != 1 or not isinstance(numbers[0], int):
        raise ConversionError(
            entry.id, [f"OpenML lists {answer!r:.100}, expected a single dataset {name}, version {version}"]
        )
    number: int = numbers[0]
    return number


def _parse_features(answer: Any, entry: Entry) -> list[dict[str, Any]]:
    """Return name, type and role of every column. The role is ``feature``, ``target``, or empty for an ignored column."""
    columns = []
    try:
        for column in sorted(answer, key=lambda column: int(column["index"])):
            ignored = _TRUE in {column.get("is_ignore"), column.get("is_row_identifier")}
            role = "target" if column["is_target"] == _TRUE else "" if ignored else "feature"
            columns.append({"name": str(column["name"]), "kind": str(column["data_type"]).lower(), "part": role})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"the list of features cannot be parsed: {error!r}"
        raise ConversionError(entry.id, [problem]) from error
    return columns


def _table_asset(description: Any, entry: Entry) -> Asset:
    """Return the file of the table."""
    from datasets_rl.fetch.asset import Asset

    if not isinstance(description, dict):
        raise ConversionError(entry.id, [f"the description is {description!r:.60}, expected an object"])
    expected = {"name": entry.params["name"].lower(), "version": str(entry.params["version"]), "format": "arff"}
    problems = [
        f"the description has the {name} {description.get(name)!r:.60}, expected {value}"
        for name, value in expected.items()
        if str(description.get(name)).lower() != value
    ]
    if description.get("status", "active") != "active":
        problems.append(
            f"the status in OpenML is {description['status']!r:.60}, expected active: its data has known issues"
        )
    url = str(description.get("url"))
    pieces = urlsplit(url)
    if pieces.scheme not in {"http", "https"} or not pieces.path.strip("/"):
        problems.append(f"the description has the url {url!r:.80}, expected a web address")
    if problems:
        hint = Remedy("another version may be in use: {}", Call("download", "openml/NAME@VERSION"))
        raise ConversionError(entry.id, problems, hint=hint)
    md5 = str(description.get("md5_checksum") or "").lower() or None
    return Asset((url,), unquote(pieces.path).lstrip("/"), kind="ARFF", md5=md5)


def _entry_from_description(entry: Entry, description: Mapping[str, Any]) -> Entry:
    reported = tuple(
        f"OpenML reports: {description[name]}".rstrip(".") + "."
        for name in ("error", "warning")
        if description.get(name)
    )
    authors = description.get("citation") or description.get("creator") or ""
    authors = ", ".join(map(str, authors)) if isinstance(authors, list) else str(authors)
    return replace(
        entry,
        title=entry.title or str(description.get("name", "")),
        license=str(description.get("licence") or entry.license),
        citation=f"{authors}; {entry.citation}" if authors else entry.citation,
        homepage=f"https://www.openml.org/d/{description.get('id')}",
        known_issues=(*entry.known_issues, *reported),
    )


SOURCE = OpenML()
