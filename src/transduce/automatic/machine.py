"""How fast this machine trains, compared with those on which the plans were timed."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from transduce.hardware import describe, pick_device

# Operations a second of the matrix product below: one core of a Neoverse-N1 in float32 with nothing
# else to do, and an H200 in bfloat16.
REFERENCE = {"cpu": 3.5e10, "cuda": 5e14}
SIDES = {"cpu": (512, 256, 512), "cuda": (4096, 4096, 4096)}
ROUNDS = 3  # before the measurement
MEASURED = 0.25  # seconds
# A small network on a GPU waits for the CPU that starts its kernels, not for its products.
SLOWEST, FASTEST = 0.05, 20.0


@dataclass(frozen=True)
class Machine:
    """A device, and its speed: 1 is as fast as the one on which the plans were timed."""

    device: str
    """cpu or cuda."""
    speed: float = 1.0
    name: str = ""

    @property
    def words(self) -> str:
        return self.name or self.device


# For a recipe that is written where there is no GPU.
ELSEWHERE = Machine("cuda", 1.0, "a GPU as fast as an H200, which is not here")


def this_machine(device: str = "auto") -> Machine:
    """The device that training would take, its speed measured in a fraction of a second.

    The speed is rounded to powers of two: the settings should not change with every noise.
    """
    place = pick_device(device)
    kind = "cuda" if place.type == "cuda" else "cpu"
    rows, inner, columns = SIDES[kind]
    precision = torch.bfloat16 if kind == "cuda" else torch.float32
    left = torch.ones(rows, inner, device=place, dtype=precision)
    right = torch.ones(inner, columns, device=place, dtype=precision)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as the small networks train that are for a CPU
    try:
        for _ in range(ROUNDS):
            (left @ right)[0, 0].item()  # waits for the device
        done, began = 0, time.perf_counter()
        # All of the time counts: other programs on the machine will slow training down too.
        while (seconds := time.perf_counter() - began) < MEASURED:
            (left @ right)[0, 0].item()
            done += 1
    finally:
        torch.set_num_threads(before)
    speed = done * 2 * rows * inner * columns / max(seconds, 1e-9)
    return Machine(kind, rounded(speed / REFERENCE[kind]), describe(place))


def rounded(speed: float) -> float:
    """The nearest power of two, within what was thought of."""
    power = 1.0
    while power < speed / 2**0.5:
        power *= 2
    while power > speed * 2**0.5:
        power /= 2
    return min(max(power, SLOWEST), FASTEST)
