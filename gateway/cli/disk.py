"""Downloaded models on this machine's disk: their size, and removal."""

import shutil
from pathlib import Path

from cluster.models.store import kept_manifest


def freed_by_removing(data_dir: Path, model: str) -> int | None:
    """Remove a Hugging Face model's files and local nodes' copies; return the bytes freed.

    Return None if it was not downloaded. With `@revision` only that revision is removed. Raises OSError.
    """
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    repository, _, revision = model.partition("@")
    models = data_dir / "cluster" / "models"
    try:
        cache = scan_cache_dir(models)
    except CacheNotFound:
        return None
    found = next((repo for repo in cache.repos if repo.repo_id == repository), None)
    revisions = [
        each.commit_hash
        for each in (found.revisions if found else ())
        if not revision or revision == each.commit_hash or revision in each.refs
    ]
    if not revisions:
        return None
    strategy = cache.delete_revisions(*revisions)
    freed_bytes = int(strategy.expected_freed_size)
    strategy.execute()
    if found is not None and len(revisions) == len(found.revisions):
        freed_bytes += _remove_copies(data_dir, repository)
    return freed_bytes


def _remove_copies(data_dir: Path, name: str) -> int:
    """Remove the copies of this machine's nodes, and the manifests of the files; return the bytes freed."""
    freed_bytes = 0
    for file in (data_dir / "cluster" / "manifests").glob("*.manifest"):
        manifest = kept_manifest(file)
        if manifest is None or manifest.name != name:
            continue
        for copy in (
            *data_dir.glob(f"nodes/*/models/{manifest.digest}"),
            data_dir / "node/models" / manifest.digest,
        ):
            freed_bytes += sum(path.stat().st_size for path in copy.rglob("*") if path.is_file())
            shutil.rmtree(copy, ignore_errors=True)
        file.unlink(missing_ok=True)
    return freed_bytes
