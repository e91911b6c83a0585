"""OpenML: tables of samples and their classes, as contextual bandits.

    api/v1/json/data/list/data_name/<name>/limit/2/data_version/<version>     which number it has
    api/v1/json/data/<number>                                                 where the table is, its MD5, its license
    api/v1/json/data/features/<number>                                        what its columns are
    data/v1/download/<file>/<name>.arff                                       the table

The four are fetched as any other file, so that a download is gone on with, mirrored, or done without a network.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from datasets_rl.errors import ConversionError, FetchError, MissingDependencyError
from datasets_rl.sources.base import Entry, EpisodeReader, Listing, Selection, Shard, Source
from datasets_rl.ted.keys import PLAIN

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.ted.table import EpisodeTable

__all__ = ["SOURCE", "OpenML"]

_ID = re.compile(r"(?P<name>[A-Za-z0-9_][\w.()+,-]*)@(?P<version>[1-9]\d{0,6})", re.ASCII)
_OTHERS: Mapping[str, str] = {"nominal": "onehot", "missing": "category"}
"""How the samples of a dataset that is not in the catalog become numbers."""
_TRUE = "true"


class OpenML(Source):
    """The seven datasets that TorchRL names, and every other one as ``name@version``."""

    name = "openml"
    restated = frozenset({"license", "citation", "homepage", "known_issues"})

    def ids(self) -> Sequence[str]:
        """Return the ids of the catalog, sorted; no network."""
        return sorted(self.catalog["ids"])

    def entry(self, name: str) -> Entry:
        """Return what is known of an id; no network.

        Raises:
            UnknownIdError: If it is neither in the catalog nor of the form ``name@version``.
        """
        catalog = self.catalog
        params: dict[str, Any] = dict(catalog["ids"].get(name, {}))
        if not params:
            found = _ID.fullmatch(name)
            if found is None:
                raise self.unknown(name)
            params = {"name": found["name"], "version": int(found["version"]), **_OTHERS}
        return Entry(
            source=self.name,
            name=name,
            title=params.get("title", ""),
            license=catalog["license"],
            citation=catalog["citation"],
            homepage=catalog["homepage"],
            known_issues=tuple(catalog["known_issues"][fault] for fault in params.get("known_issues", ())),
            time_limit=1,
            params=params,
        )

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Ask OpenML for the dataset of this name and version, its description and its columns."""
        del selection
        entry = self.entry(name)
        wanted, version = entry.params["name"], entry.params["version"]
        # Names count without regard to case, as scikit-learn asks for them.
        search = self._api(f"list/data_name/{wanted.lower()}/limit/2/data_version/{version}")
        try:
            listed = _answer(upstream, search, entry, "data", "dataset")
        except FetchError as error:
            # OpenML answers with status 412 where there is none.
            if any("412" in why for _, why in error.failures):
                error.hint = f"https://www.openml.org/search?type=data&q={quote(wanted)} shows the versions in use"
            raise
        number = _number(listed, entry)
        about = self._api(str(number))
        columns = self._api(f"features/{number}")
        description = _answer(upstream, about, entry, "data_set_description")
        features = _features(_answer(upstream, columns, entry, "data_features", "feature"), entry)
        table = _table(description, entry)
        entry = _described(entry, description)
        answers = tuple(replace(one, size=len(upstream.text(one).encode())) for one in (search, about, columns))
        return Listing(
            (*answers, upstream.sized(table)),
            (Shard((table.path,)),),
            common=tuple(asset.path for asset in answers),
            params={"features": features, "table": table.path},
            keys=PLAIN,
            entry=entry,
            revision=f"data {number}, file {description.get('file_id', table.md5 or '')}",
        )

    def open(self, name: str, files: Mapping[str, Path], params: Mapping[str, Any] | None = None) -> EpisodeReader:
        """Open the table.

        Raises:
            MissingDependencyError: If pandas or scikit-learn is absent.
        """
        from datasets_rl.sources.openml.reader import OpenMLReader

        try:
            # The first one reads the table, the second one scales it.
            import pandas as pd  # noqa: F401
            import sklearn  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError("pandas and scikit-learn", "openml", f"{self.name}/{name}") from error
        params = params or {}
        entry = self.entry(name)
        return OpenMLReader(entry.id, Path(files[params["table"]]), params["features"], entry.params)

    def compare(
        self, name: str, files: Mapping[str, Path], column: Any, episodes: EpisodeTable | None = None
    ) -> list[str]:
        """Compare a converted dataset with its raw file."""
        from datasets_rl.sources.openml.compare import compare

        del episodes
        return compare(files, column, self.entry(name).params)

    def _api(self, path: str) -> Asset:
        from datasets_rl.fetch.asset import Asset

        path = f"api/v1/json/data/{path}"
        return Asset((f"{self.catalog['base_url']}{quote(path)}",), path, kind="JSON")


def _answer(upstream: Upstream, asset: Asset, entry: Entry, *names: str) -> Any:
    """Return what an answer holds under these names.

    Raises:
        ConversionError: If it is no such answer.
    """
    text = upstream.text(asset)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConversionError(entry.id, [f"{asset.path} is no JSON: {error}"]) from error
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    if not value:
        raise ConversionError(entry.id, [f"{asset.path} has no {'.'.join(names)}: {text[:80]!r}"])
    return value


def _number(listed: Any, entry: Entry) -> int:
    name, version = entry.params["name"], entry.params["version"]
    found = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    numbers = [one.get("did") for one in found if str(one.get("version")) == str(version)]
    if len(numbers) != 1 or not isinstance(numbers[0], int):
        raise ConversionError(
            entry.id, [f"OpenML lists {listed!r:.100}; expected one dataset {name}, version {version}"]
        )
    number: int = numbers[0]
    return number


def _features(listed: Any, entry: Entry) -> list[dict[str, Any]]:
    """Return name, kind and part of every column: ``feature``, ``target``, or nothing for one that is left out."""
    columns = []
    try:
        for one in sorted(listed, key=lambda one: int(one["index"])):
            aside = _TRUE in {one.get("is_ignore"), one.get("is_row_identifier")}
            part = "target" if one["is_target"] == _TRUE else "" if aside else "feature"
            columns.append({"name": str(one["name"]), "kind": str(one["data_type"]).lower(), "part": part})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"its list of features cannot be understood: {error!r}"
        raise ConversionError(entry.id, [problem]) from error
    return columns


def _table(description: Any, entry: Entry) -> Asset:
    """Return the file with the table.

    Raises:
        ConversionError: If the description is of another dataset, or of none that can be read; all faults at once.
    """
    from datasets_rl.fetch.asset import Asset

    if not isinstance(description, dict):
        raise ConversionError(entry.id, [f"its description is {description!r:.60}; expected an object"])
    wanted = {"name": entry.params["name"].lower(), "version": str(entry.params["version"]), "format": "arff"}
    faults = [
        f"its description says {name} {description.get(name)!r:.60}; expected {value}"
        for name, value in wanted.items()
        if str(description.get(name)).lower() != value
    ]
    if description.get("status", "active") != "active":
        faults.append(f"OpenML calls it {description['status']!r:.60}, and not active: faults were found in its data")
    url = str(description.get("url"))
    pieces = urlsplit(url)
    if pieces.scheme not in {"http", "https"} or not pieces.path.strip("/"):
        faults.append(f"its description says url {url!r:.80}; expected a web address")
    if faults:
        raise ConversionError(entry.id, faults, hint="another version may be in use: rlds download openml/NAME@VERSION")
    md5 = str(description.get("md5_checksum") or "").lower() or None
    return Asset((url,), unquote(pieces.path).lstrip("/"), kind="ARFF", md5=md5)


def _described(entry: Entry, description: Mapping[str, Any]) -> Entry:
    said = tuple(
        f"OpenML says of it: {description[name]}".rstrip(".") + "."
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
        known_issues=(*entry.known_issues, *said),
    )


SOURCE = OpenML()
