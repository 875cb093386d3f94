"""Products of int8 in WebAssembly, in Node: every kernel gives the sums of whole numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from node import MISSING, NODE, RUNTIME, relaxed_flags, run_module
from transduce.runtime.structures import Kernel

SCRIPT = """
import { Runtime } from "RUNTIME/wasm.js";
import { ModelFile } from "RUNTIME/weights.js";
const runtime = await Runtime.create([readFileSync(given.library)]);
const bytes = readFileSync("weights.bin");
const file = new ModelFile(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
const multiplied = ([name, rows], kernel) => runtime.scoped(() => {
  const ref = { weight: name, bias: null, rows: [0, file.header[name].shape[0]], int8: true };
  const y = runtime.allocate(4 * rows.length * ref.rows[1]);
  const size = runtime.call("product_workspace", BigInt(rows.length), BigInt(rows[0].length));
  runtime.call("multiply", file.product(runtime, ref), runtime.newFloats(rows.flat()),
    BigInt(rows.length), 0, 0, y, runtime.allocate(Number(size)), kernel);
  return Array.from(runtime.floats(y, rows.length * ref.rows[1]));
});
const kernels = given.kernels.filter((kernel) => runtime.call("has_kernel", kernel));
answer(kernels.map((kernel) => [kernel, given.asked.map((one) => multiplied(one, kernel))]));
"""


@pytest.mark.skipif(NODE is None, reason=MISSING)
@pytest.mark.parametrize("relaxed", [False, True], ids=["", "relaxed"])
def test_products_of_every_kernel_are_exact(tmp_path: Path, relaxed: bool) -> None:
    flags = relaxed_flags() if relaxed else []
    if flags is None:
        pytest.skip("this Node has no relaxed SIMD")
    levels = {
        "some": torch.randint(-127, 128, (70, 130), dtype=torch.int8),
        "most": torch.tensor([127, -127], dtype=torch.int8)[:, None].expand(2, 1024).contiguous(),
    }
    scales = {f"{name}.scale": torch.ones(len(rows_FD)) for name, rows_FD in levels.items()}
    save_file(levels | scales, tmp_path / "weights.bin", {"transduce_web": "{}"})
    asked = []
    for rows in range(1, 10):
        x_RD = torch.randint(-127, 128, (rows, 130))
        x_RD[torch.arange(rows), torch.randint(130, (rows,))] = 127  # a level is a whole number
        asked.append(("some", x_RD))
    asked.append(("most", torch.tensor([127, -127])[:, None].expand(2, 1024)))
    pairs = torch.tensor([[64, 64], [64, 65], [-64, -64], [-64, -65]])  # 128 is the most that fits
    pairs_RD = pairs.repeat(1, 512)
    pairs_RD[:, 0], pairs_RD[:, 1] = 127, 0
    asked.append(("most", pairs_RD))
    file = "transduce-relaxed.wasm" if relaxed else "transduce.wasm"
    given = {
        "library": str(RUNTIME / file),
        "kernels": [kernel for kernel in Kernel if kernel is not Kernel.BEST],
        "asked": [[name, x_RD.tolist()] for name, x_RD in asked],
    }
    found = run_module(tmp_path, SCRIPT, given, flags)
    in_general = {Kernel.PLAIN, Kernel.SIMD128}
    possible = (
        [in_general, {Kernel.SIMD128_X86}] if relaxed else [in_general | {Kernel.SIMD128_X86}]
    )
    assert {kernel for kernel, _ in found} in possible
    for kernel, answers in found:
        for (name, x_RD), answer in zip(asked, answers, strict=True):
            expected_RF = x_RD.long() @ levels[name].long().T
            assert answer == expected_RF.flatten().tolist(), (kernel, name, len(x_RD))
