"""What lies upstream, asked once: lists of folders, and small files that say what the big ones are.

Every answer is kept, so that a download that was interrupted goes on with the same revision, and without a network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import Any

from datasets_rl import disk
from datasets_rl.errors import FetchError, IntegrityError, InvalidArgumentError, OfflineError
from datasets_rl.fetch.asset import Asset, Folder
from datasets_rl.fetch.download import asking, fetch, fetch_local, mirrored, size_of
from datasets_rl.fetch.plan import safe_path
from datasets_rl.fetch.schemes import NotThere, Scheme, scheme_of, shown
from datasets_rl.progress import waiting
from datasets_rl.settings import Settings

__all__ = ["Upstream"]

_TEXT_MOST = 64 << 20
_ELSEWHERE = "give the files with --from-local PATH, or a copy of the upstream with --mirror URL"


class Upstream:
    """Answers what a source wants to know of the upstream before it can say which files it needs.

    Args:
        raw: Where small files go: the folder into which `fetch` will put the big ones.
        kept: The file that keeps the lists.
        settings: Time limits, tries, and whether the network may be used.
        mirrors: Base addresses that are asked first, with the upstream's own layout below them.
        local: A folder of the user's that is asked instead of any other address.
        hash_check: False compares neither sizes nor digests of small files.
    """

    def __init__(
        self,
        raw: Path,
        kept: Path,
        *,
        settings: Settings,
        mirrors: Sequence[str] = (),
        local: Path | None = None,
        hash_check: bool = True,
    ) -> None:
        self._raw = raw
        self._kept = kept
        self._settings = settings
        self._mirrors = tuple(mirrors)
        self._local = local
        self._hash_check = hash_check

    def folder(self, path: str, urls: Sequence[str]) -> Folder:
        """List all files below a folder.

        Args:
            path: The folder in the upstream's own layout; the paths of the assets begin with it.
            urls: Addresses of the folder, in the order in which they are tried.

        Raises:
            FetchError: If no address gave a list; `OfflineError` if the network was needed and is forbidden.
        """
        if self._local is not None:
            below = self._local / path
            candidates = [(below if below.is_dir() else self._local).as_uri()]
        else:
            candidates = [*(f"{base.rstrip('/')}/{path}" for base in self._mirrors), *urls]
        asked = json.dumps([path, *candidates])
        answers = self._answers()
        if asked not in answers:
            found = self._list(path, candidates)
            if self._local is None:
                self._keep({**answers, asked: _to_json(found)})
            return found
        return self._mirrored(_from_json(answers[asked]))

    def repositories(self, owner: str) -> list[str]:
        """List the dataset repositories of an owner on the hub, as ``owner/repo``.

        Raises:
            FetchError: If the hub gave no list; `OfflineError` if the network is forbidden.
        """
        from datasets_rl.fetch.schemes import hf

        what = f"the list of the repositories of {owner}"
        if self._settings.offline:
            raise OfflineError(what, hint="unset RLDS_OFFLINE")
        with asking(self._settings) as get:
            try:
                return hf.repositories(owner, get)
            except NotThere as reason:
                raise FetchError(what, [(f"hf://datasets/{owner}", str(reason))]) from None

    def below_mirrors(self, path: str) -> tuple[str, ...]:
        """Return where the mirrors have a file that the upstream has under several paths; that of its asset is known."""
        return mirrored(Asset((), path), self._mirrors).urls

    def sized(self, asset: Asset) -> Asset:
        """Return a file that no list gave with its size, which is asked for; as it is where no address says it.

        Raises:
            FetchError: If it is wanted from a folder of the user's, and is not there.
        """
        if self._local is not None:
            (came,) = fetch_local([asset], self._local, hash_check=self._hash_check)
            return replace(asset, size=came.size)
        asked = json.dumps(["size", asset.path, *asset.urls])
        answers = self._answers()
        if asked not in answers and not self._settings.offline:
            sizes = (size_of(url, self._settings) for url in mirrored(asset, self._mirrors).urls)
            answers = {**answers, asked: next((size for size in sizes if size is not None), None)}
            self._keep(answers)
        return replace(asset, size=answers.get(asked))

    def text(self, asset: Asset) -> str:
        """Return the content of a small text file, which `fetch` then finds in its place.

        A file that no list gave is looked for under its path below the mirrors, or in the folder of the user's.

        Raises:
            FetchError: If no address gave it.
            IntegrityError: If it is another file than the one expected, or no text of a sensible length.
        """
        quiet = replace(self._settings, progress=False)
        if self._local is not None and not all(scheme_of(url).IN_PLACE for url in asset.urls):
            (came,) = fetch_local([asset], self._local, hash_check=self._hash_check)
        else:
            with waiting(f"waiting for {asset.path}", show=self._settings.progress):
                (came,) = fetch(
                    [mirrored(asset, self._mirrors)], self._raw, settings=quiet, hash_check=self._hash_check
                )
        if came.size > _TEXT_MOST:
            raise IntegrityError(asset.path, [f"it has {came.size:,} bytes; expected at most {_TEXT_MOST:,}"])
        try:
            return came.path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise IntegrityError(asset.path, [f"it is no text: {error}"]) from error

    def _answers(self) -> Mapping[str, Any]:
        try:
            answers = json.loads(self._kept.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return answers if isinstance(answers, dict) else {}

    def _keep(self, answers: Mapping[str, Any]) -> None:
        self._kept.parent.mkdir(parents=True, exist_ok=True)
        disk.write_json(self._kept, answers)

    def _list(self, path: str, candidates: Sequence[str]) -> Folder:
        failures: list[tuple[str, str]] = []
        switched_off = False
        with asking(self._settings) as get:
            for url in candidates:
                scheme: Scheme = scheme_of(url)
                if not scheme.IN_PLACE and self._settings.offline:
                    switched_off = True
                    continue
                try:
                    return self._mirrored(_placed(path, scheme.folder(url, get)))
                except NotThere as reason:
                    failures.append((shown(url), str(reason)))
        what = f"the list of the files of {path}"
        if switched_off:
            raise OfflineError(what, failures, hint=f"unset RLDS_OFFLINE, or {_ELSEWHERE}")
        raise FetchError(what, failures, hint=_ELSEWHERE)

    def _mirrored(self, folder: Folder) -> Folder:
        # Mirrors that cannot be listed may still have the files.
        return replace(folder, assets=tuple(mirrored(asset, self._mirrors) for asset in folder.assets))


def _placed(path: str, folder: Folder) -> Folder:
    assets = []
    for asset in folder.assets:
        try:
            assets.append(replace(asset, path=str(PurePosixPath(path) / safe_path(asset.path))))
        except InvalidArgumentError as error:
            raise NotThere(str(error)) from None
    if not assets:
        raise NotThere("there is no file below it")
    return replace(folder, assets=tuple(sorted(assets, key=lambda asset: asset.path)))


def _to_json(folder: Folder) -> dict[str, Any]:
    assets = [{name: value for name, value in asdict(asset).items() if name != "magic"} for asset in folder.assets]
    return {"address": folder.address, "revision": folder.revision, "assets": assets}


def _from_json(value: Mapping[str, Any]) -> Folder:
    assets = (Asset(**{**asset, "urls": tuple(asset["urls"])}) for asset in value["assets"])
    return Folder(value["address"], value["revision"], tuple(assets))
