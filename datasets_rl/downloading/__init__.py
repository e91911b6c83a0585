"""Downloads: the files of a dataset are planned, fetched and converted, and the result is published."""

from datasets_rl.downloading.run import download, stored_folder

__all__ = ["download", "stored_folder"]
