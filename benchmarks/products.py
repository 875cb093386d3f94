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
        weights = [torch.randn(outputs, inputs)]
        weights *= 2 if asked.quick else max(1, WEIGHTS // (4 * inputs * outputs))
        bias = torch.randn(outputs)
        packed = [Product.float32(native, weight, bias, threads=1) for weight in weights]
        plain = [weight.clone() for weight in weights]
        turned = [weight.t().contiguous() for weight in weights]
        for count in ROWS[:2] if asked.quick else ROWS:
            x = torch.randn(count, inputs)
            torch.testing.assert_close(packed[0](x), F.linear(x, plain[0], bias), atol=1e-3, rtol=0)
            products: list[Callable[[int], Tensor]] = [
                lambda number: packed[number % len(packed)](x),
                lambda number: F.linear(x, plain[number % len(plain)], bias),
                lambda number: torch.addmm(bias, x, turned[number % len(turned)]),
            ]
            work = count * inputs * outputs
            repeats = max(1, int(WORK / work))
            ours, *theirs = least_seconds(products, repeats, asked.rounds)
            row = {"rows": count, "inputs": inputs, "outputs": outputs}
            row |= {"ours": work / ours / 1e9, "torch": work / min(theirs) / 1e9}
            rows.append(row)
            print(
                f"{count:4} rows, {inputs:5} to {outputs:5}: ours {row['ours']:6.1f}, "
                f"torch {row['torch']:6.1f}, share {row['ours'] / row['torch']:.2f}",
                flush=True,
            )
    found = {**metadata(torch.device("cpu")), "variant": native.variant, "rows": rows}
    asked.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
