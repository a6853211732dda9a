"""Fixtures that the cluster's tests share."""

from collections.abc import Iterator

import pytest
import torch

from cluster.compute.devices import pick_device


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: matrices are tiny, and on a busy machine threads would mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", params=["cpu", "gpu"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU, and the GPU that a node here would compute on: a test that asks for it runs once for each."""
    device = torch.device("cpu") if request.param == "cpu" else pick_device()[0]
    if device.type != "cpu" or request.param == "cpu":
        return device
    pytest.skip("torch finds no GPU")


@pytest.fixture(scope="session", params=["cpu", "cpu, paged", "gpu"])
def stage_device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Like `device`, and the CPU once more with the KV cache that stages have on GPUs."""
    device = pick_device()[0] if request.param == "gpu" else torch.device("cpu")
    if request.param == "gpu" and device.type == "cpu":
        pytest.skip("torch finds no GPU")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "cpu, paged":
            patch.setattr("cluster.compute.stage_model._PAGED", ("cpu",))
        yield device
