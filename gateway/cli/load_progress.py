"""Progress of loading a model: download, reading by the gateway, loading by the cluster's machines."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TaskID, TextColumn

from gateway.cli import output
from gateway.cli.gateway_client import ask, lines
from gateway.settings import Settings
from runtime.data_folder import DataFolder

# Loading from a slow disk can take minutes.
LOAD_S = 3600.0
_LOOK_S = 0.3
_JOINING_S = 60.0
# Loading begins within this time.
_BEGINNING_S = 5.0
_UNDER_WAY = ("draining", "planning", "unloaded", "waiting")


def pulled(settings: Settings, model: str) -> dict[str, Any]:
    """Download the missing files of a Hugging Face model; may end the command."""
    from gateway.advice.service import models_folder
    from gateway.cli.pull import PullStopped, pull_model

    if model.partition("@")[0].count("/") != 1 or model.startswith((".", "/", "~")):
        output.fail(
            f"{model} is not a Hugging Face ID such as owner/name; local folders need no download",
            output.WRONG_USAGE,
        )
    try:
        DataFolder(settings.data_dir).prepare()
        found = pull_model(model, models_folder(settings), _check)
    except PullStopped:
        output.fail(f"stopped; `millrace pull {model}` resumes the download")
    return {
        "model": model,
        "folder": str(found.folder),
        "files": found.files,
        "bytes": found.whole_bytes,
        "fetched_bytes": found.fetched_bytes,
    }


def _check(folder: Path) -> None:
    """Check that the cluster can generate or embed with the model. Raises ModelError."""
    from cluster.errors import ModelError
    from cluster.models.embedding_model import check_family
    from cluster.models.manifest import read_config
    from cluster.models.model_card import read_card

    config = read_config(folder)
    try:
        check_family(config)
    except ModelError:
        read_card(config)


def load(settings: Settings, new: dict[str, Any]) -> str:
    """Run a model in the cluster, downloading it if needed; return its public name. `new` are the route's fields."""
    here = Path(new["model"]).expanduser()
    if not here.exists():
        pulled(settings, new["model"])
    # Resolve the folder here: the gateway may run in another directory.
    reference = str(here.absolute()) if here.exists() else new["model"]
    progress_line: dict[str, Any] = {}
    with reading_bar() as on_read:
        for progress_line in lines(settings, "/admin/cluster/models", new | {"model": reference}):
            if "done_bytes" in progress_line:
                on_read(progress_line["done_bytes"], progress_line["total_bytes"])
    if "model" not in progress_line:
        output.fail(progress_line.get("error", "the gateway stopped before the model was read"))
    return str(progress_line["model"])


@contextmanager
def reading_bar() -> Generator[Callable[[int, int], None]]:
    """Show a bar while a model's files are read, on a terminal; yield what takes the bytes done, and all of them."""
    bar = Progress(
        TextColumn("reading the model"), BarColumn(), DownloadColumn(), console=output.talk, transient=True
    )
    task = bar.add_task("", total=None, visible=False)

    def show(done_bytes: int, total_bytes: int) -> None:
        bar.update(task, completed=done_bytes, total=total_bytes, visible=done_bytes < total_bytes)

    # Stopping writes a line even if the bar was never shown.
    with bar if output.talk.is_terminal else nullcontext():
        yield show


def until_ready(settings: Settings, model: str) -> dict[str, Any]:
    """Wait until the cluster serves the model, showing each machine; return its state. May end the command."""
    began_s = time.monotonic()
    with _Machines() as shown:
        while True:
            cluster: dict[str, Any] = ask(settings, "GET", "/admin/cluster")
            found: list[dict[str, Any]] = cluster["deployments"]
            state = next((each for each in found if each["model"] == model), None)
            if state is None:
                output.fail(f"{model} was removed meanwhile")
            took_s = time.monotonic() - began_s
            # Nodes that start with the gateway take a moment.
            if state["status"] == "waiting" and not cluster["nodes"] and took_s > _JOINING_S:
                output.fail(f"{state['reason']}: add a machine with `millrace token create`")
            # A model without idle time is unloaded as soon as it is loaded.
            if state["status"] == "ready" or (state["status"] == "unloaded" and took_s > _BEGINNING_S):
                return state
            if state["status"] not in _UNDER_WAY or took_s > LOAD_S:
                output.fail(f"{state['reason']}; `millrace nodes` shows the progress")
            shown.show(state, cluster["nodes"])
            time.sleep(_LOOK_S)


class _Machines:
    """Progress lines of the cluster and each machine, on a terminal."""

    def __init__(self) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"))
        is_seen = output.talk.is_terminal
        self._progress = Progress(*columns, console=output.talk, transient=True, disable=not is_seen)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "_Machines":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, state: dict[str, Any], nodes: list[dict[str, Any]]) -> None:
        self._say("", f"{state['status']}: {state['reason']}")
        for node in nodes:
            self._say(node["node_id"], f"  {node['node']}: {_doing(node)}")

    def _say(self, of: str, text: str) -> None:
        if of not in self._tasks:
            self._tasks[of] = self._progress.add_task("", total=None)
        self._progress.update(self._tasks[of], description=output.plain(text))


def _doing(node: dict[str, Any]) -> str:
    if node["layers"]:
        return "layers {}-{}".format(*node["layers"])
    return f"connected, {node['memory_usable_bytes'] / 2**30:.1f} GiB available"
