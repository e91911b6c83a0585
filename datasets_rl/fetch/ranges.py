"""Reading of byte ranges of remote files, by requests with the timeouts and retries of a download."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets_rl.errors import SWITCH_ON, FetchError, IntegrityError, OfflineError
from datasets_rl.fetch.asset import Asset
from datasets_rl.fetch.check import WrongFileError
from datasets_rl.fetch.parallel import Cancelled, CancelToken, run_in_parallel
from datasets_rl.fetch.schemes import NotServedError, Remote, Slice, scheme_of, without_credentials
from datasets_rl.settings import Settings

if TYPE_CHECKING:
    from datasets_rl.fetch.transfer import Network

_Span = tuple[Asset, int, int]
_BLOCK_BYTES = 128 << 10
_BLOCKS_MAX = 256


class RangeReader:
    """Reader of byte ranges of remote files, safe to use from several threads.

    Args:
        settings: Timeouts, retries, threads, and whether the network may be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._network: Network | None = None
        self._remotes: dict[str, Remote | Path | Slice] = {}

    def read(self, spans: Sequence[_Span], cancel: CancelToken | None = None) -> list[bytes]:
        """Return the bytes of several ranges, which are requested in parallel.

        Args:
            spans: A triple (file, start, stop) for each range [start, stop).
            cancel: Token that cancels the requests.

        Raises:
            FetchError: If a file cannot be read, or as `OfflineError` if the network is forbidden.
            IntegrityError: If a file has another size than expected, or was replaced since the first call.
        """
        contents: dict[int, bytes] = {}

        def read_one(number: int) -> None:
            if cancel is not None and cancel.is_set():
                raise Cancelled
            contents[number] = self._read(*spans[number])

        tasks = [partial(read_one, number) for number in range(len(spans))]
        run_in_parallel(tasks, self._settings.jobs, CancelToken(cancel))
        return [contents[number] for number in range(len(spans))]

    def close(self) -> None:
        """Close the connections."""
        if self._network is not None:
            self._network.client.close()

    def _read(self, asset: Asset, start: int, stop: int) -> bytes:
        if start >= stop:
            return b""
        (url,) = asset.urls
        try:
            remote = self._resolve(url)
            if isinstance(remote, Path | Slice):
                path, offset = (remote.path, remote.start) if isinstance(remote, Slice) else (remote, 0)
                with path.open("rb") as stream:
                    stream.seek(offset + start)
                    return stream.read(stop - start)
            return self._client().get_range(remote.url, remote.headers, (start, stop), asset.size)
        except WrongFileError as reason:
            hint = "the file was replaced: open the dataset again"
            raise IntegrityError(asset.path, [f"{without_credentials(url)}: {reason}"], hint=hint) from None
        except NotServedError as reason:
            raise FetchError(asset.path, [(without_credentials(url), str(reason))], hint="try again later") from None

    def _resolve(self, url: str) -> Remote | Path | Slice:
        if url not in self._remotes:
            if not scheme_of(url).IN_PLACE and self._settings.offline:
                raise OfflineError(without_credentials(url), hint=SWITCH_ON)
            self._remotes[url] = scheme_of(url).resolve(url, self._client().ask)
        return self._remotes[url]

    def _client(self) -> Network:
        from datasets_rl.fetch.transfer import Network

        if self._network is None:
            self._network = Network(self._settings)
        return self._network


class RangeStream(io.RawIOBase):
    """Seekable stream of a remote file, which requests only the blocks that are read.

    Args:
        reader: Sends the requests.
        asset: The file, with its size and a single address.
    """

    def __init__(self, reader: RangeReader, asset: Asset) -> None:
        self._reader = reader
        self._asset = asset
        self._size = asset.size or 0
        self._at = 0
        self._blocks: dict[int, bytes] = {}

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position of the next read."""
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, and return the number of bytes read.

        Raises:
            FetchError: If a block cannot be read.
        """
        number, start = divmod(self._at, _BLOCK_BYTES)
        block = self._block(number)[start : start + len(buffer)]
        buffer[: len(block)] = block
        self._at += len(block)
        return len(block)

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            if len(self._blocks) >= _BLOCKS_MAX:
                self._blocks.clear()
            start = number * _BLOCK_BYTES
            stop = min(start + _BLOCK_BYTES, self._size)
            (self._blocks[number],) = self._reader.read([(self._asset, start, stop)])
        return self._blocks[number]
