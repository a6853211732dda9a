"""The process that computes one stage: `python -m cluster.engine.stage_process`, started by a node's agent."""

import sys
from pathlib import Path

import torch

from cluster import wire
from cluster.compute.block_files import BlockFiles, forget_all
from cluster.compute.devices import pick_device
from cluster.engine.stage import Stage
from cluster.nodes.pace_probe import probe_pace
from cluster.nodes.probe import probe_machine
from cluster.nodes.process import prepare
from cluster.trust.identity import Identity


def main(
    identity_folder: str, node_name: str, host: str, log_style: str, threads: str, share: str, kv_disk_gb: str
) -> None:
    pipe = prepare("stage", node_name, log_style)
    torch.set_num_threads(int(threads))
    device, description = pick_device()
    pace = probe_pace(device, int(threads), Path(identity_folder).parent / "pace.json", is_shared=float(share) < 1)
    machine = probe_machine(description, float(share), pace=pace, host=host)
    pipe.send(wire.Hello(node_name, machine, torch=str(torch.__version__)))
    identity = Identity(Path(identity_folder))
    files = _open_files(identity, int(float(kv_disk_gb) * 1e9))
    stage = Stage(identity, host, device, pipe.send, files)
    pipe.listen(stage.deliver, stage.stop, stage.vitals)
    if files:  # Many files take a while: the agent gets signs of life meanwhile.
        files.start()
    stage.run()


def _open_files(identity: Identity, bytes_max: int) -> BlockFiles | None:
    """Return the node's saved blocks. If it saves none, delete those of earlier starts."""
    folder = identity.folder.parent / "kv"
    if not bytes_max:
        forget_all(folder)
        return None
    return BlockFiles(folder, identity.derive_key("saved blocks"), bytes_max)


if __name__ == "__main__":
    main(*sys.argv[1:])
