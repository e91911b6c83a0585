"""Downloads: the files of a dataset are planned, fetched and converted, and the result is published."""

from datasets_rl.downloading.run import download, run_download
from datasets_rl.downloading.target import DownloadOptions

__all__ = ["DownloadOptions", "download", "run_download"]
