"""The device that a node's process computes on: the machine's GPU if torch finds one."""

import torch

from cluster.machine import Device


def pick_device() -> tuple[torch.device, Device | None]:
    """Return the device for torch, and its description; None for the CPU, which the probe describes."""
    if torch.cuda.is_available():
        # cuDNN plans its attention again for every new length, 3 ms per layer and token; other kernels need no plan.
        torch.backends.cuda.enable_cudnn_sdp(enabled=False)
        free_bytes, _ = torch.cuda.mem_get_info()
        return torch.device("cuda"), Device("cuda", torch.cuda.get_device_name(), free_bytes)
    if torch.backends.mps.is_available():
        return torch.device("mps"), Device("mps", "Apple GPU", torch.mps.recommended_max_memory())
    return torch.device("cpu"), None


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given. A CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    elif device.type == "mps":
        torch.mps.synchronize()
