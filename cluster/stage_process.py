"""The process that computes one stage: `python -m cluster.stage_process`, started by a node's agent."""

import sys
from pathlib import Path

import torch

from cluster import wire
from cluster.identity import Identity
from cluster.probe import Device, probe_machine
from cluster.process import prepare
from cluster.stage import Stage


def main(identity_folder: str, node_name: str, host: str, log_style: str, threads: str, share: str) -> None:
    pipe = prepare("stage", node_name, log_style)
    torch.set_num_threads(int(threads))
    device, found = _pick_device()
    pipe.send(wire.Hello(node_name, probe_machine(found, float(share))))
    stage = Stage(Identity(Path(identity_folder)), host, device, pipe.send)
    pipe.listen(stage.deliver, stage.stop)
    stage.run()


def _pick_device() -> tuple[torch.device, Device | None]:
    if torch.cuda.is_available():
        free_bytes, _ = torch.cuda.mem_get_info()
        return torch.device("cuda"), Device("cuda", torch.cuda.get_device_name(), free_bytes)
    if torch.backends.mps.is_available():
        return torch.device("mps"), Device("mps", "Apple GPU", torch.mps.recommended_max_memory())
    return torch.device("cpu"), None


if __name__ == "__main__":
    main(*sys.argv[1:])
