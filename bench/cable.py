"""Emulate a cable between two network devices: `python -m bench.cable DEVICE DEVICE`, started by bench.network.

Every frame that leaves one device arrives at the other after its sending time at the given rate, plus the delay. A
full queue drops frames. The cable needs neither tc nor netem, which small kernels lack. The devices are TAPs with
segmentation offload, so a large write stays one frame and the cable uses little CPU. Each line on stdin, "DELAY_MS
MBIT", changes the link (0 Mbit is no limit). The cable ends when stdin closes.
"""

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass, field

# linux/if_tun.h, linux/if.h
_TUNSETIFF, _TUNSETOFFLOAD, _TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
_VNET_HEADER_BYTES = 10

FRAME_BYTES_MAX = _VNET_HEADER_BYTES + 14 + 2**16
QUEUE_BYTES_MAX = 2 * 2**20
SEGMENT_BYTES = 1448
# Ethernet, IP and TCP headers that each further segment of an offloaded frame would have.
_SEGMENT_HEADER_BYTES = 66
# Preamble, check sequence and the gap between frames.
_ON_WIRE_BYTES = 24


@dataclass(slots=True)
class _Direction:
    """Frames on their way from one device to the other, oldest first. Times are time.monotonic()'s."""

    source: int
    target: int
    free_s: float = 0.0
    waiting_bytes: int = 0
    frames: deque[tuple[float, int, bytes]] = field(default_factory=deque)

    def take(self, delay_s: float, bytes_per_s: float) -> None:
        """Read what the source has sent, and compute when each frame arrives."""
        while True:
            try:
                frame = os.read(self.source, FRAME_BYTES_MAX)
            except BlockingIOError:
                return
            size_bytes = wire_bytes(len(frame) - _VNET_HEADER_BYTES)
            if self.waiting_bytes + size_bytes > QUEUE_BYTES_MAX:
                continue
            sending_s = size_bytes / bytes_per_s if bytes_per_s else 0.0
            self.free_s = max(time.monotonic(), self.free_s) + sending_s
            due_s = self.free_s + delay_s
            if self.frames:
                # A link with a shortened delay still must not reorder frames.
                due_s = max(due_s, self.frames[-1][0])
            self.frames.append((due_s, size_bytes, frame))
            self.waiting_bytes += size_bytes

    def deliver(self) -> None:
        now_s = time.monotonic()
        while self.frames and self.frames[0][0] <= now_s:
            _, size_bytes, frame = self.frames.popleft()
            self.waiting_bytes -= size_bytes
            try:
                os.write(self.target, frame)
            except OSError:
                continue  # The other side's queue is full or the device is down: the frame is lost, as on a wire.


def wire_bytes(frame_bytes: int) -> int:
    """Return the bytes of a frame on an Ethernet wire. One frame may stand for many segments."""
    segments = max(1, -(-(frame_bytes - _SEGMENT_HEADER_BYTES) // SEGMENT_BYTES))
    return frame_bytes + (segments - 1) * _SEGMENT_HEADER_BYTES + segments * _ON_WIRE_BYTES


def main(names: list[str]) -> None:
    one, other = (_open_tap(name) for name in names)
    directions = (_Direction(one, other), _Direction(other, one))
    # Run ahead of the measured programs: a cable that waits for a core would be slower.
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(20))
    except PermissionError:
        print("cable runs without real-time priority", file=sys.stderr)
    print("ready", flush=True)
    delay_s, bytes_per_s, control = 0.0, 0.0, sys.stdin.fileno()
    while True:
        dues_s = [direction.frames[0][0] for direction in directions if direction.frames]
        wait_s = max(0.0, min(dues_s) - time.monotonic()) if dues_s else None
        readable, _, _ = select.select([one, other, control], [], [], wait_s)
        if control in readable:
            line = os.read(control, 4096).decode()
            if not line:
                return
            delay_ms, mbit = line.splitlines()[-1].split()
            delay_s, bytes_per_s = float(delay_ms) / 1000, float(mbit) * 1e6 / 8
        for direction in directions:
            if direction.source in readable:
                direction.take(delay_s, bytes_per_s)
            direction.deliver()


def _open_tap(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(device, _TUNSETVNETHDRSZ, struct.pack("i", _VNET_HEADER_BYTES))
    fcntl.ioctl(device, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    return device


if __name__ == "__main__":
    main(sys.argv[1:])
