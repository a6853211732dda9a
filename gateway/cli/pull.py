"""Downloads a model from Hugging Face with progress bars: one per file, and one for all files."""

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from cluster.errors import ModelNotFound
from gateway.cli import output
from gateway.cli.download import Tell, fetch_blob

# A hub gives one address its full rate over this many connections.
_AT_ONCE = 4


class PullStopped(Exception):
    """The user pressed Ctrl-C; the next download resumes from the files on disk."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """The folder of a model, and the bytes that had to be downloaded."""

    folder: Path
    files: int
    whole_bytes: int
    fetched_bytes: int


class Watch:
    """Progress bars on stderr if it is a terminal. Every thread reports its own file."""

    def __init__(self) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=output.talk,
            disable=not output.talk.is_terminal,
        )
        self._all: TaskID | None = None
        self._stop = threading.Event()

    def __enter__(self) -> "Watch":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def expect(self, total_bytes: int) -> None:
        self._all = self._progress.add_task("all files", total=total_bytes)

    def stop(self) -> None:
        """Make all reporting threads raise PullStopped."""
        self._stop.set()

    def teller(self, name: str, size_bytes: int) -> Tell:
        """Return a callback for the pieces of this file. It raises PullStopped after `stop`."""
        task = self._progress.add_task(output.plain(name), total=size_bytes)

        def tell(piece_bytes: int) -> None:
            if self._stop.is_set():
                raise PullStopped
            self._progress.advance(task, piece_bytes)
            self._advance(piece_bytes)

        return tell

    def _advance(self, size_bytes: int) -> None:
        if self._all is not None:
            self._progress.advance(self._all, size_bytes)


def pull_model(reference: str, cache: Path, check: Callable[[Path], object]) -> Pulled:
    """Download a Hugging Face model (`owner/name`, optionally `@revision`) to `cache`, where find_model looks.

    `check` gets the folder with config.json before weights are downloaded. Raises ModelNotFound, PullStopped and
    what `check` raises. An interrupted download is resumed.
    """
    # The library is slow to import, and most commands do not need it.
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    from huggingface_hub.utils import build_hf_headers, disable_progress_bars

    from cluster.models.store import WANTED_FILES, is_hub_reachable

    disable_progress_bars()  # we show our own bars
    repository, _, revision = reference.partition("@")
    place: dict[str, Any] = {"revision": revision or "main", "cache_dir": cache}
    place["local_files_only"] = not is_hub_reachable()
    headers = build_hf_headers()
    try:
        config = Path(hf_hub_download(repository, "config.json", **place))
        check(config.parent)
        files = snapshot_download(repository, allow_patterns=WANTED_FILES, dry_run=True, **place)
        missing = [file for file in files if file.will_download]
        blobs = config.parents[2] / "blobs"
        with Watch() as watch:
            watch.expect(sum(file.file_size or 0 for file in missing))

            def fetch(file: Any) -> None:
                url = hf_hub_url(repository, file.filename, revision=file.commit_hash)
                etag = get_hf_file_metadata(url, headers=headers).etag
                if etag and file.file_size is not None:
                    tell = watch.teller(file.filename, file.file_size)
                    fetch_blob(url, headers, blobs / etag, file.file_size, tell)
                hf_hub_download(repository, file.filename, **place)

            _all(fetch, missing, watch)
    except LocalEntryNotFoundError:
        raise ModelNotFound(f"{repository} is not on this machine, and Hugging Face cannot be reached") from None
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelNotFound(f"cannot download {reference}: {error}") from None
    whole, fetched = (sum(file.file_size or 0 for file in some) for some in (files, missing))
    return Pulled(config.parent, len(files), whole, fetched)


def _all(fetch: Callable[[Any], None], files: list[Any], watch: Watch) -> None:
    """Fetch several files at once; a failure or Ctrl-C stops all. Raises what `fetch` raises, PullStopped."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pull") as threads:
        running = [threads.submit(fetch, file) for file in files]
        try:
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException as error:
            watch.stop()
            threads.shutdown(wait=True, cancel_futures=True)
            if isinstance(error, KeyboardInterrupt):
                raise PullStopped from None
            raise
