"""float32 products of the C library beside torch's (MKL on x86), for one thread.

    python benchmarks/products.py [--rounds 9] [--out FILE]

The shapes are those of a Transformer-base and of a small one, with few rows and many. Weights come
in turn, 64 MB of them, so that a product finds its weight beyond the caches, as in a network. Both
take turns, in CPU seconds; a figure is that of the least. torch multiplies with the weight as it is
and with its transpose, and the faster counts. Prints billions of multiplications a second and our
share of torch's speed, and writes benchmarks/results/products_cpu.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from systems import metadata
from torch import Tensor

from transduce.runtime import Product, library, why_not

RESULTS = Path(__file__).parent / "results"
SHAPES = [(256, 768), (256, 1024), (1024, 256), (256, 8000), (512, 512), (512, 1536)]
SHAPES += [(512, 2048), (2048, 512), (512, 8000)]
ROWS = [1, 4, 6, 12, 32, 128, 512]
WEIGHTS = 64 << 20  # bytes of all weights that come in turn
WORK = 3e7  # multiplications of one measurement at least


def least_seconds(
    products: list[Callable[[int], Tensor]], repeats: int, rounds: int
) -> list[float]:
    """CPU seconds of each; they are called with the number of a weight, which goes on."""
    numbers, best = itertools.count(), [float("inf")] * len(products)
    for turn in range(rounds):
        for place in range(len(products)):
            one = (place + turn) % len(products)  # whoever is first finds other caches
            began = time.process_time()
            for _ in range(repeats):
                products[one](next(numbers))
            best[one] = min(best[one], (time.process_time() - began) / repeats)
    return best


def speeds(packed: list[Product], weights: list[Tensor], count: int, rounds: int) -> list[float]:
    """Billions of multiplications a second of `count` rows: ours, torch's."""
    x, bias = torch.randn(count, weights[0].shape[1]), torch.zeros(len(weights[0]))
    turned = [weight.t().contiguous() for weight in weights]
    torch.testing.assert_close(packed[0](x), F.linear(x, weights[0], bias), atol=1e-3, rtol=0)
    products: list[Callable[[int], Tensor]] = [
        lambda number: packed[number % len(packed)](x),
        lambda number: F.linear(x, weights[number % len(weights)], bias),
        lambda number: torch.addmm(bias, x, turned[number % len(turned)]),
    ]
    work = count * weights[0].numel()
    ours, *theirs = least_seconds(products, max(1, int(WORK / work)), rounds)
    return [work / ours / 1e9, work / min(theirs) / 1e9]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="one small shape")
    parser.add_argument("--out", type=Path, default=RESULTS / "products_cpu.json")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    native = library()
    if native is None:
        sys.exit(f"There is no C library to measure: {why_not()}")
    rows = []
    for inputs, outputs in [(32, 64)] if asked.quick else SHAPES:
        torch.manual_seed(1)
        several = 2 if asked.quick else max(1, WEIGHTS // (4 * inputs * outputs))
        weights = [torch.randn(outputs, inputs) for _ in range(several)]
        packed = [Product.float32(native, weight, None, threads=1) for weight in weights]
        for count in ROWS[:2] if asked.quick else ROWS:
            ours, others = speeds(packed, weights, count, asked.rounds)
            shape = {"rows": count, "inputs": inputs, "outputs": outputs}
            rows.append({**shape, "ours": ours, "torch": others})
            print(
                f"{count:4} rows, {inputs:5} to {outputs:5}: ours {ours:6.1f}, "
                f"torch {others:6.1f}, share {ours / others:.2f}",
                flush=True,
            )
    found = {**metadata(torch.device("cpu")), "variant": native.variant, "rows": rows}
    asked.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
