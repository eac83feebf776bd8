# ruff: noqa: F401 - the imports are for type checkers
"""Files: atomic writes, locks, downloads, archives, and checkpoints read without executing them."""

from typing import TYPE_CHECKING

from utils.lazy_listing import lazy_listing

if TYPE_CHECKING:
    from utils.files.archives import ArchiveError, unpack
    from utils.files.atomic import atomic_write, name_os_errors, replace_folder, temporary_folder
    from utils.files.checkpoint_file import digest_of_checkpoint
    from utils.files.disk import exclusive_access, format_bytes, lock_folder, require_free_space
    from utils.files.download import DownloadSource, check_url, fetch, sha256_of
    from utils.files.fingerprint import digest_of_contents, digest_of_states, file_state
    from utils.files.folders import cache_folder, new_run_folder, newest_first, remove_partial_files
    from utils.files.pickled import read_plain
    from utils.files.remote import open_remote
    from utils.files.safe_names import safe_name
    from utils.files.writers import write_bytes, write_csv, write_json, write_text, write_yaml
    from utils.files.yaml_tree import read_tree

__all__, __getattr__ = lazy_listing(
    __name__,
    {
        "archives": ["ArchiveError", "unpack"],
        "atomic": ["atomic_write", "name_os_errors", "replace_folder", "temporary_folder"],
        "checkpoint_file": ["digest_of_checkpoint"],
        "disk": ["exclusive_access", "format_bytes", "lock_folder", "require_free_space"],
        "download": ["DownloadSource", "check_url", "fetch", "sha256_of"],
        "fingerprint": ["digest_of_contents", "digest_of_states", "file_state"],
        "folders": ["cache_folder", "new_run_folder", "newest_first", "remove_partial_files"],
        "pickled": ["read_plain"],
        "remote": ["open_remote"],
        "safe_names": ["safe_name"],
        "writers": ["write_bytes", "write_csv", "write_json", "write_text", "write_yaml"],
        "yaml_tree": ["read_tree"],
    },
)
