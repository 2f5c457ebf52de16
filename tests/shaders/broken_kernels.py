"""In-place calls whose kernels fail midway, in a process of their own: broken kernels stay cached.

    python broken_kernels.py        prints a line a call: "CASE: states kept | lost, MESSAGE"

The kernels are our own with one line added, a wild write: in float32 the last head of `rule` and
`core` runs into it, when earlier heads have stored their state; in float16 the dispatch behind
them, when it has moved on most of the conv state. In bfloat16 that dispatch does not compile.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from cases import Shape, make_hidden, make_layer, make_states, pack_layer
from compare import run_layer_in_place

from torch_mps_fusion import host_kernels

SHAPE = Shape(32, 1, 2, 32, 32)
WILD = "{}[0x4000000000000ul] = 7;"
# family: text, and what stands in its place. Of the two chunks of 2,100 tokens the first is longer.
LAST_HEAD = "if (TMF_IO == 32 && {} == args.v_heads && args.tokens != 1056) " + WILD
EDITS = {
    "rule": ("\n}\n\n#define TMF_FOR_DIMS", LAST_HEAD.format("h + 1", "state_out")),
    "core": ("\n}\n\n#define TMF_FOR_DIMS", LAST_HEAD.format("tg.x + 1", "state_out")),
    "projection": (
        "\n    return;\n  }\n  const uint first = 8 * tg.y",
        "if (TMF_IO == 16 && i + 1 == gdn.batch * channels) " + WILD.format("conv_out"),
    ),
}
CASES = [
    ("core", torch.float32, 1),
    ("packed", torch.float32, 3),
    ("core", torch.float32, 40),
    ("packed", torch.float32, 2100),
    ("core", torch.float16, 3),
    ("packed", torch.float16, 40),
    ("core", torch.bfloat16, 3),
    ("packed", torch.bfloat16, 40),
]
true_text, true_kernel = host_kernels.text, host_kernels.kernel


def broken_text(family: str) -> str:
    text = true_text(family)
    if family not in EDITS:
        return text
    at, line = EDITS[family]
    assert text.count(at) == 1, family
    return text.replace(at, f"\n{line}{at}")


def broken_kernel(family: str, name: str, constants: str, checked: bool = False):
    if "_bf16_" in name and host_kernels.parse_constants(constants).get(202):
        raise RuntimeError("a kernel that does not compile")
    return true_kernel(family, name, constants, checked)


def main() -> None:
    host_kernels.text, host_kernels.kernel = broken_text, broken_kernel
    for variant, dtype, tokens in CASES:
        layer = pack_layer(make_layer(SHAPE, dtype, input_norm=True))
        states = make_states(SHAPE, 2, dtype)
        before = [s.clone() for s in states]
        message = "no error"
        try:
            hidden = make_hidden(SHAPE, 2, tokens, dtype)
            run_layer_in_place(layer, hidden, states, variant=variant)
        except RuntimeError as error:
            message = str(error).splitlines()[0]
        kept = all(torch.equal(s, b) for s, b in zip(states, before, strict=True))
        print(f"{variant} {dtype} {tokens}: states {'kept' if kept else 'lost'}, {message}")


if __name__ == "__main__":
    main()
