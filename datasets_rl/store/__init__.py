"""Stored datasets: where they are on this disk, and how they change.

    <root>/<name>/
      CURRENT              a line with the current version, replaced atomically: the only file that is ever replaced
      0001-3f2a9c10/       a version: complete, never changes, named by the number and the manifest's digest
      0002-77b012e4/
      build-<request>/     an unfinished version with a journal, which the same request completes
      raw/  recorded/      upstream files, and finished episodes that no version has yet
      trash-<random>/      what is being deleted
      .datasets-rl         marks a folder that has no version yet, or any more
    <root>/<name>@<recipe>/    a derived dataset, the same inside

Readers take no lock and change nothing: they read CURRENT and open that folder. If the folder is gone, they read
CURRENT again. Writers publish (`store.publish`). A build that a process works on has the name of the process,
``build-<request>@<process>``.

What is in the folder may have been put there by others, so that the folder is read like any other input: a link, a
pipe or a device is refused, and nothing but the dataset's own names is ever deleted. Others have folders with names
like ours, such as ``build-20241101``: a name counts only in a folder that has CURRENT, a version, or the mark of this
package.
"""

from datasets_rl.format.current import version_folder
from datasets_rl.store.find import (
    dataset_paths,
    dataset_places,
    find_paths,
    id_or_path,
    locate,
    paths_of,
    source_folders,
    stored_folders,
)
from datasets_rl.store.layout import AUDIT_FOLDER, INDEX_FOLDER, STREAM_FOLDER, DatasetPaths
from datasets_rl.store.publish import Version, current_version, versions_of
from datasets_rl.store.versions import (
    has_only_copy,
    is_link_alone,
    prune,
    prune_audits,
    prune_builds,
    prune_index,
    prune_raw,
    prune_streams,
    remove,
    remove_folder,
    restore,
    sweep_dataset,
    sweep_index,
)

__all__ = [
    "AUDIT_FOLDER",
    "INDEX_FOLDER",
    "STREAM_FOLDER",
    "DatasetPaths",
    "Version",
    "current_version",
    "dataset_paths",
    "dataset_places",
    "find_paths",
    "has_only_copy",
    "id_or_path",
    "is_link_alone",
    "locate",
    "paths_of",
    "prune",
    "prune_audits",
    "prune_builds",
    "prune_index",
    "prune_raw",
    "prune_streams",
    "remove",
    "remove_folder",
    "restore",
    "source_folders",
    "stored_folders",
    "sweep_dataset",
    "sweep_index",
    "version_folder",
    "versions_of",
]
