"""Loopback servers with the API of the Hugging Face Hub and of Google Cloud Storage, over folders on disk.

    with hub({"farama-minari/D4RL": folder}) as server:      # HF_ENDPOINT=server.url
    with bucket({"minari-remote": folder}) as server:        # STORAGE_EMULATOR_HOST=server.url

They implement what the downloads use: paginated lists, commits, sha256 and size in the headers of large files,
generations and checksums. `Server.paths` can be changed while a server runs; `Server.requests` has all requests.

    with publishing(folder) as (server, hub):                # HF_ENDPOINT=server.url, HF_TOKEN=TOKEN
        hub.commits                                          # a folder with the files of each commit

is a hub that takes uploads: repositories, branches, large files and commits.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from crc32c import crc32c
from servers import Call, File, Server, Status, serve

__all__ = ["COMMIT", "TOKEN", "Bucket", "Hub", "PublicHub", "bucket", "hub", "publishing"]

COMMIT = "c0ffee" * 6 + "c0ff"
TOKEN = "hf_loopback"
LARGE = 512
"""Size in bytes from which the Hub serves a file as an LFS object."""


def _files(folder: Path) -> dict[str, Path]:
    """Return every file below a folder by its relative POSIX path."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def _reply(call: Call, value: Any, headers: Mapping[str, str] | None = None) -> None:
    """Send a value as a JSON response with status 200."""
    body = json.dumps(value).encode()
    call.start(200, {"Content-Type": "application/json", "Content-Length": len(body), **(headers or {})})
    if call.command != "HEAD":
        call.wfile.write(body)


@dataclass
class Hub:
    """A dataset repository of the Hub: its commit, its paginated tree and its files."""

    repo: str
    folder: Path
    commit: str = COMMIT
    page: int = 3
    """Number of entries in a page of the tree."""
    replaced: dict[str, Any] = field(default_factory=dict)
    """Responses, by path in the repository, that replace those of the files."""

    def answer(self, call: Call) -> None:
        """Respond to a request for a revision, the tree or a file."""
        path = unquote(urlsplit(call.path).path)
        api = f"/api/datasets/{self.repo}/"
        if path.startswith(f"{api}revision/"):
            wanted = path.removeprefix(f"{api}revision/")
            known = wanted in {"main", self.commit}
            _reply(call, {"sha": self.commit, "id": self.repo}) if known else Status(404).answer(call)
        elif path.startswith(f"{api}tree/"):
            self._tree(call, path.removeprefix(f"{api}tree/{self.commit}").strip("/"))
        else:
            below = path.removeprefix(f"/datasets/{self.repo}/resolve/")
            self._file(call, below.removeprefix(f"{self.commit}/").removeprefix("main/"))

    def _tree(self, call: Call, below: str) -> None:
        """Respond with one page of the list of files below a folder."""
        query = parse_qs(urlsplit(call.path).query)
        inside = {
            path: place for path, place in _files(self.folder).items() if path.startswith(f"{below}/" if below else "")
        }
        if not inside:
            Status(404, {"X-Error-Message": "Entry not found"}).answer(call)
            return
        folders = sorted({parent.as_posix() for path in inside for parent in Path(path).parents} - {"."})
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": one} for one in folders]
        entries += [self._entry(path, place) for path, place in inside.items()]
        start = int(query.get("cursor", ["0"])[0])
        following = start + self.page
        there = f"{call.server.url}{urlsplit(call.path).path}?recursive=true&cursor={following}"
        more = {"Link": f'<{there}>; rel="next"'} if following < len(entries) else {}
        _reply(call, entries[start:following], more)

    def _entry(self, path: str, place: Path) -> dict[str, Any]:
        """Return the entry of a file in the tree; a large file has its sha256 under `lfs`."""
        size = place.stat().st_size
        entry: dict[str, Any] = {"type": "file", "oid": "1" * 40, "size": size, "path": path}
        if size >= LARGE:
            entry["lfs"] = {"oid": _sha256(place), "size": size, "pointerSize": 134}
        return entry

    def _file(self, call: Call, path: str) -> None:
        """Respond with a file, with its commit and, for a large file, its digest in the headers."""
        place = self.folder / path
        if path in self.replaced:
            self.replaced[path].answer(call)
        elif not place.is_file():
            Status(404).answer(call)
        else:
            large = place.stat().st_size >= LARGE
            linked = {"X-Linked-Etag": f'"{_sha256(place)}"', "X-Linked-Size": place.stat().st_size} if large else {}
            File(place, headers={"X-Repo-Commit": self.commit, **linked}).answer(call)


@dataclass
class Bucket:
    """A bucket of Google Cloud Storage: a paginated list of objects, all of one generation."""

    name: str
    folder: Path
    generation: int = 1700000000000001
    page: int = 3
    listable: bool = True
    """Whether the objects can be listed without credentials."""
    composite: bool = False
    """Whether the objects are composite; composite objects have a CRC32C but no MD5."""

    def answer(self, call: Call) -> None:
        """Respond to a request for the list of objects or for an object."""
        path = unquote(urlsplit(call.path).path)
        if path == f"/storage/v1/b/{self.name}/o":
            self._list(call) if self.listable else Status(403).answer(call)
            return
        place = self.folder / path.removeprefix(f"/{self.name}/")
        wanted = parse_qs(urlsplit(call.path).query).get("generation", [str(self.generation)])[0]
        if not place.is_file() or wanted != str(self.generation):
            Status(404).answer(call)
            return
        hashes = [f"crc32c={_crc32c(place)}"] + [f"md5={_md5(place)}"] * (not self.composite)
        headers = {"x-goog-hash": ",".join(hashes), "x-goog-generation": self.generation}
        File(place, headers=headers).answer(call)

    def _list(self, call: Call) -> None:
        """Respond with one page of the list of objects."""
        query = parse_qs(urlsplit(call.path).query, keep_blank_values=True)
        prefix, start = query["prefix"][0], int(query.get("pageToken", ["0"])[0])
        items = [
            {"name": path, "size": str(place.stat().st_size), "generation": str(self.generation)}
            | {"crc32c": _crc32c(place)}
            | ({} if self.composite else {"md5Hash": _md5(place)})
            for path, place in _files(self.folder).items()
            if path.startswith(prefix)
        ]
        following = start + self.page
        more = {"nextPageToken": str(following)} if following < len(items) else {}
        _reply(call, ({"items": items[start:following]} if items else {}) | more)


@dataclass
class _Owned:
    """The paginated list of the repositories of an author, one per page."""

    repos: list[str]

    def answer(self, call: Call) -> None:
        """Respond with one page of the list."""
        query = parse_qs(urlsplit(call.path).query)
        mine = [repo for repo in self.repos if repo.startswith(f"{query['author'][0]}/")]
        start = int(query.get("cursor", ["0"])[0])
        there = f"{call.server.url}/api/datasets?author={query['author'][0]}&cursor={start + 1}"
        more = {"Link": f'<{there}>; rel="next"'} if start + 1 < len(mine) else {}
        _reply(call, [{"id": repo} for repo in mine[start : start + 1]], more)


class _RoutesByPart(dict[str, Any]):
    """Routes a path to the first response whose key is a part of the path."""

    def get(self, path: str, default: Any = None) -> Any:
        """Return the response for a request path."""
        if path == "/api/datasets":
            return _Owned([hub.repo for hub in self.values() if isinstance(hub, Hub)])
        for mark, behaviour in self.items():
            if mark in unquote(path):
                return behaviour
        return default


@dataclass
class PublicHub:
    """The part of the hub that takes uploads, and serves the repositories that they created.

    Every commit is a folder of whole files; a branch or tag is the name of a commit.
    """

    folder: Path
    token: str = TOKEN
    faults: dict[str, list[Any]] = field(default_factory=dict)
    """By a part of the path, the behaviors that replace the next responses, each once."""
    commits: dict[str, Path] = field(default_factory=dict)
    """The folder of each commit."""
    branches: dict[tuple[str, str], str] = field(default_factory=dict)
    """The commit of each branch of each repository."""
    private: set[str] = field(default_factory=set)
    sent: list[str] = field(default_factory=list)
    """The digests of the large files that were received completely, in order."""
    requests: list[tuple[str, str]] = field(default_factory=list)

    def answer(self, call: Call) -> None:
        """Respond to one request."""
        path = unquote(urlsplit(call.path).path)
        self.requests.append((call.command, path))
        for mark, behaviors in self.faults.items():
            if mark in f"{call.command} {path}" and behaviors:
                fault = behaviors.pop(0)
                _body(call)
                fault.answer(call)
                return
        body = _body(call)
        if path.startswith("/store/"):
            self._keep(call, path, body)
        elif call.command in {"GET", "HEAD"}:
            self._serve(call, path)
        elif call.headers.get("Authorization") != f"Bearer {self.token}":
            Status(401, {"X-Error-Message": "Invalid credentials"}).answer(call)
        else:
            self._change(call, path, body)

    def _change(self, call: Call, path: str, body: bytes) -> None:
        found = _PUBLISHED.fullmatch(path)
        if path == "/api/repos/create":
            self._create(call, json.loads(body))
        elif path == "/api/validate-yaml":
            _reply(call, {"errors": [], "warnings": []})
        elif path.endswith(".git/info/lfs/objects/batch"):
            _reply(
                call, {"transfer": "basic", "objects": [self._action(call, one) for one in json.loads(body)["objects"]]}
            )
        elif found is None or (found["repo"], "main") not in self.branches:
            Status(404, {"X-Error-Message": "Repository not found"}).answer(call)
        elif found["what"] == "preupload":
            present = _files(self.commits[self.branches[found["repo"], found["revision"]]])
            _reply(call, {"files": [self._mode(one, present.get(one["path"])) for one in json.loads(body)["files"]]})
        elif found["what"] == "branch":
            self.branches[found["repo"], found["revision"]] = self.branches[found["repo"], "main"]
            _reply(call, {})
        else:
            self._commit(call, found["repo"], found["revision"], body)

    def _create(self, call: Call, request: Any) -> None:
        repo = f"{request['organization']}/{request['name']}"
        if (repo, "main") in self.branches:
            body = json.dumps({"error": "You already created this repo", "url": f"{call.server.url}/datasets/{repo}"})
            Status(409, body=body.encode()).answer(call)
            return
        if request.get("visibility") == "private" or request.get("private"):  # the latter in older versions
            self.private.add(repo)
        self._add_commit(repo, "main", {".gitattributes": b"*.npy filter=lfs\n"})
        _reply(call, {"url": f"{call.server.url}/datasets/{repo}"})

    def _mode(self, file: Any, present: Path | None) -> Any:
        """Return how a file is sent, with the digest of the present file of its path: sha256, or git's sha1."""
        mode = "lfs" if file["size"] >= LARGE else "regular"
        data = b"" if present is None else present.read_bytes()
        git = hashlib.sha1(b"blob %d\0%s" % (len(data), data), usedforsecurity=False).hexdigest()
        digest = hashlib.sha256(data).hexdigest() if len(data) >= LARGE else git
        return {
            "path": file["path"],
            "uploadMode": mode,
            "shouldIgnore": False,
            "oid": None if present is None else digest,
        }

    def _action(self, call: Call, file: Any) -> Any:
        """Return how to send a large file; without an action if the hub has it."""
        plain = {"oid": file["oid"], "size": file["size"]}
        if (self.folder / "objects" / file["oid"]).is_file():
            return plain
        return {**plain, "actions": {"upload": {"href": f"{call.server.url}/store/{file['oid']}"}}}

    def _keep(self, call: Call, path: str, body: bytes) -> None:
        digest = path.rpartition("/")[2]
        if hashlib.sha256(body).hexdigest() != digest:
            Status(400).answer(call)
            return
        place = self.folder / "objects" / digest
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(body)
        self.sent.append(digest)
        Status(200).answer(call)

    def _commit(self, call: Call, repo: str, branch: str, body: bytes) -> None:
        files = {path: place.read_bytes() for path, place in _files(self.commits[self.branches[repo, branch]]).items()}
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = (self.folder / "objects" / value["oid"]).read_bytes()
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        commit = self._add_commit(repo, branch, files)
        _reply(call, {"commitUrl": f"{call.server.url}/datasets/{repo}/commit/{commit}", "commitOid": commit})

    def _add_commit(self, repo: str, branch: str, files: Mapping[str, bytes]) -> str:
        commit = f"{len(self.commits) + 1:040x}"
        folder = self.folder / "commits" / commit
        folder.mkdir(parents=True)
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        self.commits[commit], self.branches[repo, branch] = folder, commit
        return commit

    def _serve(self, call: Call, path: str) -> None:
        """Respond as `Hub` does, with the commit of the requested revision."""
        found = _SERVED.match(path)
        repo = found["repo"] if found else ""
        if repo in self.private and call.headers.get("Authorization") != f"Bearer {self.token}":
            Status(401, {"X-Error-Message": "Invalid username or password."}).answer(call)
            return
        revision = (found["revision"] if found else None) or "main"
        commit = revision if revision in self.commits else self.branches.get((repo, revision))
        if commit is None:
            Status(404, {"X-Error-Message": "Repository not found"}).answer(call)
            return
        call.path = call.path.replace(f"/{revision}", f"/{commit}", 1)
        Hub(repo, self.commits[commit], commit, page=1000).answer(call)


def _body(call: Call) -> bytes:
    """Return the body of a request, which may be sent in chunks."""
    if call.headers.get("Transfer-Encoding") != "chunked":
        return call.rfile.read(int(call.headers.get("Content-Length", 0)))
    body = b""
    while size := int(call.rfile.readline(), 16):
        body += call.rfile.read(size)
        call.rfile.readline()
    call.rfile.readline()
    return body


_PUBLISHED = re.compile(r"/api/datasets/(?P<repo>[^/]+/[^/]+)/(?P<what>preupload|commit|branch)/(?P<revision>.+)")
_SERVED = re.compile(r"(?:/api)?/datasets/(?P<repo>[^/]+/[^/]+)(?:/(?:revision|tree|resolve)/(?P<revision>[^/]+))?")


class _Everything(dict[str, Any]):
    """Routes every path to one hub."""

    def get(self, path: str, default: Any = None) -> Any:
        """Return the hub."""
        del path, default
        return self["hub"]


@contextmanager
def publishing(folder: Path, **options: Any) -> Iterator[tuple[Server, PublicHub]]:
    """Run a hub that takes uploads and keeps them in a folder; `options` are fields of `PublicHub`."""
    with serve({}) as server:
        there = PublicHub(folder, **options)
        server.paths = _Everything(hub=there)
        yield server, there


@contextmanager
def hub(repositories: Mapping[str, Path], **options: Any) -> Iterator[Server]:
    """Run a server of dataset repositories, folders by name; `options` are fields of `Hub`."""
    with serve({}) as server:
        server.paths = _RoutesByPart(
            {f"/{repo}/": Hub(repo, folder, **options) for repo, folder in repositories.items()}
        )
        yield server


@contextmanager
def bucket(buckets: Mapping[str, Path], **options: Any) -> Iterator[Server]:
    """Run a server of buckets, folders by name; `options` are fields of `Bucket`."""
    with serve({}) as server:
        server.paths = _RoutesByPart({f"/{name}/": Bucket(name, folder, **options) for name, folder in buckets.items()})
        yield server


def _sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _md5(path: Path) -> str:
    """Return the MD5 of a file in base64."""
    return base64.b64encode(hashlib.md5(path.read_bytes()).digest()).decode()


def _crc32c(path: Path) -> str:
    """Return the CRC32C of a file in base64."""
    return base64.b64encode(crc32c(path.read_bytes()).to_bytes(4, "big")).decode()
