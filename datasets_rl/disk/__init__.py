"""The disk: the only code that renames, fsyncs, locks or deletes.

A file or a folder is written under a temporary name next to the target and then renamed to the target, or exchanged
with the existing target, so that a reader sees the old version or the new one, and never a part of either. Contents are
fsynced before the rename and the parent folder after it, so that this also holds after a power cut.

    atomic     a file is written completely or not at all, with the moments of a flush to the disk
    exchange   a folder replaces another folder
    claims     a folder of unfinished work belongs to a single process, and processes has the names of processes
    locks      two processes do not do the same work at once
    deletion   files, folders, and what other processes may be opening
    scratch    temporary folders that are removed with the process
    space      sizes, free space, and the errors of a full disk
    plain      hidden paths of this package, where others may have put a link
    places     paths of users, and the folders of datasets that nothing else may be written into

Other rooms import the names below from here, and never from these modules. `tests/test_rooms.py` checks both rules.
"""

from datasets_rl.disk.atomic import (
    create_file,
    free_temporary_files,
    has_content,
    link_file,
    link_or_copy,
    make_folder,
    make_link,
    move_path,
    publish_file,
    replaced_file,
    rewrite_file,
    sync_file,
    sync_stream,
    sync_tree,
    temporary_files,
    write_bytes,
    write_json,
    write_text,
)
from datasets_rl.disk.claims import claim, claimed, claims_of, release
from datasets_rl.disk.deletion import (
    TRASH_NAME,
    discard,
    empty_trash,
    remove_empty,
    remove_empty_parents,
    remove_file,
    remove_tree,
)
from datasets_rl.disk.exchange import exchange_folders, publish_folder
from datasets_rl.disk.locks import FileLock, is_locked, lock
from datasets_rl.disk.places import (
    CURRENT_FILE,
    FORMAT_NAME,
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    STATE_FILE,
    check_nesting,
    check_outside_versions,
    dataset_around,
    expand_home,
    is_version,
    real_path,
)
from datasets_rl.disk.plain import check_kind, files_below, is_plain_file, plain_folders, read_plain
from datasets_rl.disk.processes import is_abandoned, process_name, unclaimed_name
from datasets_rl.disk.scratch import ScratchFolder, sweep_scratch
from datasets_rl.disk.space import disk_errors, free_bytes, require_free, tree_bytes

__all__ = [
    "CURRENT_FILE",
    "FORMAT_NAME",
    "MANIFEST_FILE",
    "MAX_MANIFEST_BYTES",
    "STATE_FILE",
    "TRASH_NAME",
    "FileLock",
    "ScratchFolder",
    "check_kind",
    "check_nesting",
    "check_outside_versions",
    "claim",
    "claimed",
    "claims_of",
    "create_file",
    "dataset_around",
    "discard",
    "disk_errors",
    "empty_trash",
    "exchange_folders",
    "expand_home",
    "files_below",
    "free_bytes",
    "free_temporary_files",
    "has_content",
    "is_abandoned",
    "is_locked",
    "is_plain_file",
    "is_version",
    "link_file",
    "link_or_copy",
    "lock",
    "make_folder",
    "make_link",
    "move_path",
    "plain_folders",
    "process_name",
    "publish_file",
    "publish_folder",
    "read_plain",
    "real_path",
    "release",
    "remove_empty",
    "remove_empty_parents",
    "remove_file",
    "remove_tree",
    "replaced_file",
    "require_free",
    "rewrite_file",
    "sweep_scratch",
    "sync_file",
    "sync_stream",
    "sync_tree",
    "temporary_files",
    "tree_bytes",
    "unclaimed_name",
    "write_bytes",
    "write_json",
    "write_text",
]
