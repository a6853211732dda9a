"""Model files on this machine: found in a folder, pulled from Hugging Face, or fetched from the controller."""

import hashlib
import os
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from ssl import SSLError
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import msgspec
import structlog

from cluster.errors import ModelError, ModelInvalid, ModelNotFound, WeightsMismatch
from cluster.models import gguf_model
from cluster.models.gguf_file import model_stem
from cluster.models.manifest import READER_VERSION, Manifest, Progress, TensorEntry, read_config, read_manifest
from cluster.models.model_card import read_card

log = structlog.get_logger(__name__)

# Small enough that signs of life do not wait long behind it on a slow link.
PART_BYTES = 256 * 2**10

_TENSORS = "tensors"
_SHA256_BYTES = 32
# The hub library's name for the bar that counts the bytes of all files on disk.
_BAR_OF_ALL = "huggingface_hub.snapshot_download"
_CONNECT_S = 2.0
WANTED_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "chat_template.jinja"]


def model_name(reference: str) -> str:
    """Return a model's public name: of its folder or GGUF file, or its Hugging Face id without the revision."""
    folder = Path(reference).expanduser()
    if folder.suffix == ".gguf" and folder.is_file():
        return model_stem(folder)
    return folder.resolve().name if folder.is_dir() else reference.partition("@")[0]


CheckConfig = Callable[[dict[str, Any]], object]
"""Raises ModelError for a config.json that is not supported."""


def find_model(
    reference: str, cache: Path, check: CheckConfig = read_card, progress: Progress | None = None
) -> Path:
    """Return the folder of a model, given by a local path or a Hugging Face id (`owner/name[@revision]`).

    A GGUF file, or a folder that holds one, becomes a folder in `cache` with its own config.json and tokenizer. A
    pull shows its progress on stderr, reports it to `progress` from its own threads, and resumes an interrupted
    one. An unsupported family is refused after its config.json, before any weights are downloaded. Raise
    ModelNotFound or ModelUnsupported.
    """
    folder = Path(reference).expanduser()
    if folder.suffix == ".gguf" and folder.is_file():
        return gguf_model.unpack(folder.absolute(), cache)
    if folder.is_dir():
        gguf = gguf_model.find_gguf(folder.absolute())
        return gguf_model.unpack(gguf, cache) if gguf else folder.resolve()
    repository, _, revision = reference.partition("@")
    if repository.count("/") != 1 or repository.startswith((".", "/", "~")):
        raise ModelNotFound(f"{reference} is neither a folder nor a Hugging Face ID like owner/name")
    return _pull(repository, revision or "main", cache, check, progress)


def _pull(repository: str, revision: str, cache: Path, check: CheckConfig, progress: Progress | None) -> Path:
    # The library takes long to import, and most starts need no pull.
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    place: dict[str, Any] = {"revision": revision, "cache_dir": cache, "local_files_only": not is_hub_reachable()}
    try:
        config = Path(hf_hub_download(repository, "config.json", **place))
        check(read_config(config.parent))
        folder = snapshot_download(
            repository,
            allow_patterns=WANTED_FILES,
            **place,
            tqdm_class=_reporting_bar(progress) if progress else None,
        )
    except LocalEntryNotFoundError:
        raise ModelNotFound(f"{repository} is not on this machine and Hugging Face cannot be reached") from None
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelNotFound(f"{repository}@{revision} cannot be pulled: {error}") from None
    return Path(folder)


def is_hub_reachable() -> bool:
    """Tell whether Hugging Face, or HF_ENDPOINT, accepts a connection within 2 s.

    Its library would try for half a minute, with a warning each time.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        request = Request(constants.ENDPOINT, method="HEAD")  # noqa: S310 - the operator's own setting
        urlopen(request, timeout=_CONNECT_S).close()  # noqa: S310
    except HTTPError:
        pass
    except URLError as error:
        # The library decides which certificates are valid.
        return isinstance(error.reason, SSLError)
    except (OSError, HTTPException, ValueError):
        pass  # It is slow, not a web server, or not an address. The library reports the problem.
    return True


def _reporting_bar(progress: Progress) -> type[Any]:
    """Return the hub's own bar, which also reports the bytes of all files so far, and the known total."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc, type-arg, unused-ignore]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._done_bytes = 0.0 if kwargs.get("name") == _BAR_OF_ALL else None
            super().__init__(*args, **kwargs)

        def update(self, n: float | None = 1) -> Any:
            if self._done_bytes is not None:
                self._done_bytes += n or 0
                progress(int(self._done_bytes), int(self.total or 0))
            return super().update(n)

    return Bar


def load_manifest(folder: Path, name: str, cache: Path, progress: Progress | None = None) -> Manifest:
    """Return the folder's manifest. Hash only if a file has changed since the last time."""
    files = sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".gguf", ".json", ".jinja"))
    stamps = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    key = hashlib.sha256(msgspec.json.encode([READER_VERSION, name, stamps])).hexdigest()
    file = cache / f"{key}.manifest"
    if file.is_file() and (kept := kept_manifest(file)):
        return kept
    manifest = read_manifest(folder, name, progress)
    cache.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(f".{os.getpid()}")
    content = msgspec.msgpack.encode(manifest)
    fresh.write_bytes(hashlib.sha256(content).digest() + content)
    fresh.replace(file)
    return manifest


def kept_manifest(file: Path) -> Manifest | None:
    """Return a stored manifest, or None if it is damaged: it begins with the SHA-256 of the rest."""
    try:
        whole = file.read_bytes()
        pinned, content = whole[:_SHA256_BYTES], whole[_SHA256_BYTES:]
        if hashlib.sha256(content).digest() != pinned:
            raise ModelInvalid("its hash does not match")
        return msgspec.msgpack.decode(content, type=Manifest)
    except (ModelInvalid, msgspec.DecodeError, OSError) as error:
        log.warning(
            "stored manifest damaged", file=str(file), reason=str(error), remedy="the model is hashed again"
        )
        return None


def open_source(source: str) -> Callable[[TensorEntry], bytearray]:
    """Return a reader of tensors' raw bytes, from a checkpoint folder or a ModelCopy's folder."""
    folder = Path(source)
    fetched = (folder / _TENSORS).is_dir()

    def read(entry: TensorEntry) -> bytearray:
        path = folder / _TENSORS / entry.sha256 if fetched else folder / entry.file
        content = bytearray(entry.size_bytes)
        try:
            with path.open("rb") as file:
                file.seek(0 if fetched else entry.offset)
                got = file.readinto(content)
        except OSError as error:
            raise ModelNotFound(f"cannot read {path}: {error.strerror}") from None
        if got != entry.size_bytes:
            raise ModelInvalid(f"{path} is truncated: {got} of {entry.size_bytes} bytes")
        return content

    return read


def read_part(source: Path, manifest: Manifest, sha256: str, offset: int) -> tuple[bytes, int]:
    """Return up to PART_BYTES of a tensor or small file from `offset` on, and its total size.

    Raise ModelNotFound.
    """
    places = [(name, 0, entry.size_bytes) for name, entry in manifest.files.items() if entry.sha256 == sha256]
    places += [(t.file, t.offset, t.size_bytes) for t in manifest.tensors.values() if t.sha256 == sha256]
    if not places:
        raise ModelNotFound(f"{manifest.name} has no file with sha256 {sha256}")
    name, begin, size_bytes = places[0]
    if not 0 <= offset <= size_bytes:
        raise ModelNotFound(f"{name} has {size_bytes} bytes of sha256 {sha256}, none at {offset}")
    with (source / name).open("rb") as file:
        file.seek(begin + offset)
        return file.read(min(PART_BYTES, size_bytes - offset)), size_bytes


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raise WeightsMismatch if tokenizer, configuration and the like differ from the manifest.

    Raise ModelNotFound if one cannot be read.
    """
    for name, entry in manifest.files.items():
        try:
            digest = _hash(folder / name)
        except OSError as error:
            raise ModelNotFound(f"cannot read {folder / name}: {error.strerror}") from None
        if digest != entry.sha256:
            raise WeightsMismatch(name, entry.sha256, digest)


def held_digests(models: Path, manifest_digest: str) -> list[str]:
    """Return the digests that are complete in this node's copy of a model."""
    folder = models / _checked(manifest_digest) / _TENSORS
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if _is_digest(path.name))


def read_held(models: Path, manifest_digest: str, sha256: str, offset: int) -> tuple[bytes, int]:
    """Return up to PART_BYTES of a complete part, and its total size. Raise ModelNotFound or OSError."""
    path = models / _checked(manifest_digest) / _TENSORS / _checked(sha256)
    if not path.is_file():
        raise ModelNotFound(f"no file with sha256 {sha256} is here")
    size_bytes = path.stat().st_size
    if not 0 <= offset <= size_bytes:
        raise ModelNotFound(f"{sha256} has {size_bytes} bytes, none at {offset}")
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(PART_BYTES), size_bytes


class ModelCopy:
    """A node's own copy of the parts of one model that it needs, filled piece by piece, resumable."""

    def __init__(self, models: Path, manifest: Manifest) -> None:
        self.folder = models / manifest.digest
        self._manifest = manifest
        self._sizes = {entry.sha256: entry.size_bytes for entry in manifest.tensors.values()}
        self._sizes |= {entry.sha256: entry.size_bytes for entry in manifest.files.values()}
        (self.folder / _TENSORS).mkdir(parents=True, exist_ok=True)

    def missing(self, tensor_names: list[str]) -> list[str]:
        """Return the digests to fetch for these tensors and the small files.

        A file of another size counts as missing.
        """
        return [digest for digest in self._needed(tensor_names) if not self._is_complete(digest)]

    def drop_damaged(self, tensor_names: list[str]) -> list[str]:
        """Hash the files of these tensors and the small files. Delete changed ones, and return their names."""
        dropped = []
        for digest, name in self._needed(tensor_names).items():
            path = self._path(digest)
            if path.is_file() and _hash(path) != digest:
                path.unlink()
                dropped.append(name)
            elif path.is_file():
                self._place_small_files(digest)
        return dropped

    def size_bytes(self, sha256: str) -> int:
        """Return a file's size in bytes, by the manifest."""
        return self._sizes[sha256]

    def offset(self, sha256: str) -> int:
        """Return the byte at which fetching continues."""
        part = self._part(sha256)
        return part.stat().st_size if part.is_file() else 0

    def append(self, sha256: str, content: bytes, total_bytes: int) -> bool:
        """Add the next piece. Return True once the file is complete and its hash is right.

        Raise WeightsMismatch if the hash is wrong, and ModelInvalid if the file exceeds `total_bytes`.
        """
        part = self._part(sha256)
        with part.open("ab") as file:
            file.write(content)
            size_bytes = file.tell()
        if size_bytes > total_bytes:
            part.unlink()
            raise ModelInvalid(f"the fetched part {sha256} has {size_bytes} bytes instead of {total_bytes}")
        if size_bytes < total_bytes:
            return False
        with part.open("rb") as file:
            os.fsync(file.fileno())
        digest = _hash(part)
        if digest != sha256:
            part.unlink()
            raise WeightsMismatch("a fetched part", sha256, digest)
        part.replace(self._path(sha256))
        self._place_small_files(sha256)
        return True

    def _place_small_files(self, sha256: str) -> None:
        for name, entry in self._manifest.files.items():
            if entry.sha256 == sha256:
                if "/" in name or name.startswith("."):
                    raise ModelError(f"manifest names a file {name!r} outside the model's folder")
                (self.folder / name).write_bytes(self._path(sha256).read_bytes())

    def _needed(self, tensor_names: list[str]) -> dict[str, str]:
        """Return names by digest; names that share a digest count once."""
        files = {entry.sha256: name for name, entry in self._manifest.files.items()}
        return files | {self._manifest.tensors[name].sha256: name for name in tensor_names}

    def _is_complete(self, sha256: str) -> bool:
        path = self._path(sha256)
        if not path.is_file():
            return False
        if path.stat().st_size != self._sizes[sha256]:
            path.unlink()  # The file is truncated, for example by a full disk.
            return False
        return True

    def _path(self, sha256: str) -> Path:
        return self.folder / _TENSORS / _checked(sha256)

    def _part(self, sha256: str) -> Path:
        return self._path(sha256).with_suffix(".part")


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_digest(text: str) -> bool:
    return len(text) == 64 and text.isalnum()


def _checked(digest: str) -> str:
    """Return the digest, which becomes a part of a path. Raise ModelError if it is not one."""
    if not _is_digest(digest):
        raise ModelError(f"{digest[:80]!r} is not a SHA-256")
    return digest
