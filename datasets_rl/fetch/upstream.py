"""Cached metadata of an upstream: folder listings, file sizes, and small files that describe the large files.

Every answer is stored, so that an interrupted download resumes at the same revision, without network access.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from datasets_rl import disk
from datasets_rl.errors import (
    SWITCH_ON,
    Argument,
    FetchError,
    IntegrityError,
    InvalidArgumentError,
    OfflineError,
    Remedy,
)
from datasets_rl.fetch.asset import Asset, Fetched, Folder
from datasets_rl.fetch.download import fetch, fetch_local, json_client, size_of_url, with_mirrors
from datasets_rl.fetch.plan import safe_path
from datasets_rl.fetch.schemes import NotServedError, Scheme, scheme_of, without_credentials
from datasets_rl.progress import waiting
from datasets_rl.settings import Settings

_TEXT_MAX_BYTES = 64 << 20
_UNREACHED = "check the connection to the network, then run the command again"
_ELSEWHERE = Remedy(
    "give the files with {}, or a copy of the upstream with {}", Argument("from_local"), Argument("mirrors")
)


class Upstream:
    """Client for the metadata that a source needs to determine the files of a dataset.

    Args:
        raw: Folder for small files. `fetch` stores the large files in the same folder.
        answers_file: File that stores the answers.
        settings: Timeouts, number of retries, and whether the network may be used.
        mirrors: Base addresses that are tried first and have the layout of the upstream.
        local: A folder of the user that replaces every address.
        hash_check: False skips the comparison of the sizes and digests of small files.
    """

    def __init__(
        self,
        raw: Path,
        answers_file: Path,
        *,
        settings: Settings,
        mirrors: Sequence[str] = (),
        local: Path | None = None,
        hash_check: bool = True,
    ) -> None:
        self._raw = raw
        self._answers_path = answers_file
        self._settings = settings
        self._mirrors = tuple(mirrors)
        self._local = local
        self._hash_check = hash_check

    def folder(self, path: str, urls: Sequence[str]) -> Folder:
        """List all files below a folder.

        Args:
            path: Path of the folder in the upstream. The paths of the assets begin with this path.
            urls: Addresses of the folder, tried in this order.

        Raises:
            FetchError: If no address returned a listing, or as `OfflineError` if the network is needed but forbidden.
        """
        if self._local is not None:
            below = self._local / path
            candidates = [(below if below.is_dir() else self._local).as_uri()]
        else:
            candidates = [*(f"{base.rstrip('/')}/{path}" for base in self._mirrors), *urls]
        query = json.dumps([path, *candidates])
        answers = self._stored_answers()
        if query not in answers:
            folder = self._list_folder(path, candidates)
            if self._local is None:
                self._store({**answers, query: _folder_to_json(folder)})
            return folder
        return self._with_mirrors(_folder_from_json(answers[query]))

    def neighbor(self, folder: Folder, own: str, path: str, urls: Sequence[str] = ()) -> Folder:
        """List all files below another folder of the upstream, first at the address beside a listed folder.

        In a folder of the user, `urls` are not tried.

        Args:
            folder: The listed folder.
            own: The path of the listed folder in the upstream.
            path: The path of the other folder in the upstream.
            urls: Further addresses of the other folder.

        Raises:
            FetchError: If no address returned a listing, or as `OfflineError` if the network is needed but forbidden.
        """
        base = folder.address.removesuffix(f"/{own}")
        beside = [] if base == folder.address else [f"{base}/{path}"]
        if self._local is not None:
            return self._list_folder(path, beside)
        return self.folder(path, [*beside, *urls])

    def answered_folder(self, path: str) -> Folder | None:
        """Return the stored listing of a folder from any address, or None if no listing is stored."""
        for query, answer in self._stored_answers().items():
            if json.loads(query)[0] == path:
                return _folder_from_json(answer)
        return None

    def repositories(self, owner: str) -> list[str]:
        """List the dataset repositories of an owner on the Hugging Face hub, as ``owner/repo``.

        Raises:
            FetchError: If the hub returned no list, or as `OfflineError` if the network is forbidden.
        """
        from datasets_rl.fetch.schemes import hf

        what = f"the list of the repositories of {owner}"
        if self._settings.offline:
            raise OfflineError(what, hint=SWITCH_ON)
        with json_client(self._settings) as get:
            try:
                return hf.repositories(owner, get)
            except NotServedError as reason:
                raise FetchError(what, [(f"hf://datasets/{owner}", str(reason))]) from None

    def mirror_urls(self, path: str) -> tuple[str, ...]:
        """Return the addresses of a path below the mirrors, for a file that the upstream has under several paths."""
        return with_mirrors(Asset((), path), self._mirrors).urls

    def with_size(self, asset: Asset) -> Asset:
        """Return an asset that no listing contains, with the size of the file if an address reports the size.

        Raises:
            FetchError: If the folder of the user does not contain the file.
        """
        if self._local is not None:
            (fetched,) = fetch_local([asset], self._local, hash_check=self._hash_check)
            return replace(asset, size=fetched.size)
        query = json.dumps(["size", asset.path, *asset.urls])
        answers = self._stored_answers()
        if query not in answers and not self._settings.offline:
            sizes = (size_of_url(url, self._settings) for url in with_mirrors(asset, self._mirrors).urls)
            answers = {**answers, query: next((size for size in sizes if size is not None), None)}
            self._store(answers)
        return replace(asset, size=answers.get(query))

    def text(self, asset: Asset) -> str:
        """Return the content of a small text file. A later `fetch` finds the stored file.

        A file that no listing contains is searched by its path below the mirrors, or in the folder of the user.

        Raises:
            FetchError: If no address serves the file.
            IntegrityError: If the file is not the expected file, not UTF-8 text, or too large.
        """
        fetched = self._fetch(asset)
        if fetched.size > _TEXT_MAX_BYTES:
            raise IntegrityError(
                asset.path, [f"the file has {fetched.size:,} bytes, expected at most {_TEXT_MAX_BYTES:,}"]
            )
        try:
            return fetched.path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise IntegrityError(asset.path, [f"the file is not UTF-8 text: {error}"]) from error

    def inspected(self, asset: Asset, inspect: Callable[[BinaryIO], Any]) -> Any:
        """Return the result of a function that reads only parts of a file, such as the names of arrays.

        Only the parts that the function reads are requested, if the server serves byte ranges.

        Args:
            asset: The file.
            inspect: Reads the stream and returns a JSON value, which is stored like every answer.

        Raises:
            FetchError: If no address serves the file.
        """
        if asset.is_packed:
            return self._inspect_parts(asset, inspect)
        if self._local is not None or all(scheme_of(url).IN_PLACE for url in asset.urls):
            with self._fetch(asset).path.open("rb") as stream:
                return inspect(stream)
        query = json.dumps(["inspected", inspect.__qualname__, asset.path, *asset.urls])
        answers = self._stored_answers()
        if query not in answers:
            answers = {**answers, query: self._inspect_parts(asset, inspect)}
            self._store(answers)
        return answers[query]

    def _inspect_parts(self, asset: Asset, inspect: Callable[[BinaryIO], Any]) -> Any:
        from datasets_rl.fetch.ranges import RangeReader, RangeStream

        reader = RangeReader(self._settings)
        try:
            for url in with_mirrors(asset, self._mirrors).urls if asset.size is not None else ():
                # An address that does not serve byte ranges may still serve the whole file.
                with suppress(FetchError, IntegrityError):
                    return inspect(io.BufferedReader(RangeStream(reader, replace(asset, urls=(url,)))))
        finally:
            reader.close()
        with self._fetch(asset).path.open("rb") as stream:
            return inspect(stream)

    def file(self, asset: Asset) -> Path:
        """Return the path of a small file, such as a table of episodes. A later `fetch` finds the stored file.

        Raises:
            FetchError: If no address serves the file.
            IntegrityError: If the file is not the expected file.
        """
        return self._fetch(asset).path

    def _fetch(self, asset: Asset) -> Fetched:
        quiet = replace(self._settings, progress=False)
        if self._local is not None and not all(scheme_of(url).IN_PLACE for url in asset.urls):
            (fetched,) = fetch_local([asset], self._local, hash_check=self._hash_check)
        else:
            with waiting(f"waiting for {asset.path}", show=self._settings.progress):
                (fetched,) = fetch(
                    [with_mirrors(asset, self._mirrors)], self._raw, settings=quiet, hash_check=self._hash_check
                )
        return fetched

    def _stored_answers(self) -> Mapping[str, Any]:
        try:
            answers = json.loads(self._answers_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return answers if isinstance(answers, dict) else {}

    def _store(self, answers: Mapping[str, Any]) -> None:
        self._answers_path.parent.mkdir(parents=True, exist_ok=True)
        disk.write_json(self._answers_path, answers)

    def _list_folder(self, path: str, candidates: Sequence[str]) -> Folder:
        failures: list[tuple[str, str]] = []
        needs_network, unreached = False, bool(candidates)
        with json_client(self._settings) as get:
            for url in candidates:
                scheme: Scheme = scheme_of(url)
                if not scheme.IN_PLACE and self._settings.offline:
                    needs_network = True
                    continue
                try:
                    return self._with_mirrors(_with_full_paths(path, scheme.folder(url, get)))
                except NotServedError as reason:
                    failures.append((without_credentials(url), str(reason)))
                    unreached &= reason.network
        what = f"the list of the files of {path}"
        if needs_network:
            raise OfflineError(what, failures, hint=Remedy(f"{SWITCH_ON}, or {{}}", _ELSEWHERE))
        elsewhere = _ELSEWHERE if self._local is None else Remedy("correct {}", Argument("from_local"))
        raise FetchError(what, failures, unreached=unreached, hint=_UNREACHED if unreached else elsewhere)

    def _with_mirrors(self, folder: Folder) -> Folder:
        # Mirrors that cannot list folders may still serve the files.
        return replace(folder, assets=tuple(with_mirrors(asset, self._mirrors) for asset in folder.assets))


def _with_full_paths(path: str, folder: Folder) -> Folder:
    assets = []
    for asset in folder.assets:
        try:
            assets.append(replace(asset, path=str(PurePosixPath(path) / safe_path(asset.path))))
        except InvalidArgumentError as error:
            raise NotServedError(str(error)) from None
    if not assets:
        raise NotServedError("the folder has no files")
    return replace(folder, assets=tuple(sorted(assets, key=lambda asset: asset.path)))


def _folder_to_json(folder: Folder) -> dict[str, Any]:
    assets = [{name: value for name, value in asdict(asset).items() if name != "magic"} for asset in folder.assets]
    return {"address": folder.address, "revision": folder.revision, "assets": assets}


def _folder_from_json(value: Mapping[str, Any]) -> Folder:
    assets = (Asset(**{**asset, "urls": tuple(asset["urls"])}) for asset in value["assets"])
    return Folder(value["address"], value["revision"], tuple(assets))
