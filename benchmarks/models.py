"""Payload of whole models: every matrix of a decode pass, by shape. Nothing is allocated.

Weights are counted as a pass reads them: projections that share an input are one matrix, whose rows
may be padded; a tensor that is another's view is counted with its owner.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from torch_mps_fusion.models.config import KNOWN_SHAPES, GDNConfig


@dataclass(frozen=True)
class Format:
    """Bytes of a weight: `bits`, and a scale and a bias of two bytes each for every `group`."""

    bits: int
    group: int = 0

    @property
    def bytes_per_weight(self) -> Fraction:
        extra = Fraction(2 * 2, self.group) if self.group else Fraction(0)
        return Fraction(self.bits, 8) + extra


FORMATS = {
    "q4-affine-g64": Format(4, 64),
    "q8-affine-g64": Format(8, 64),
    "bf16": Format(16),
}


@dataclass(frozen=True)
class Matrix:
    """`count` matrices of rows x columns; `owner` names the one that holds an alias's memory."""

    part: str  # target, draft or context
    group: str  # gdn, attention, ffn, head, draft
    name: str
    rows: int
    columns: int
    count: int = 1
    padded_rows: int = 0
    owner: str = ""

    @property
    def weights(self) -> int:
        return (self.padded_rows or self.rows) * self.columns * self.count


@dataclass(frozen=True)
class Attention:
    heads: int
    kv_heads: int
    head_dim: int
    gated: bool = False

    @property
    def query(self) -> int:
        return self.heads * self.head_dim

    @property
    def in_rows(self) -> int:
        """Query, its output gate, key and value."""
        return self.query * (2 if self.gated else 1) + 2 * self.kv_heads * self.head_dim


@dataclass(frozen=True)
class Draft:
    """A draft model that reads hidden states of as many target layers as it has layers, and a head
    over part of the vocabulary. `mutable_rows` of that head are its own mutable segment."""

    layers: int
    attention: Attention
    head_rows: int
    mutable_rows: int


@dataclass(frozen=True)
class Model:
    gdn: GDNConfig
    ffn: int
    vocabulary: int
    attention: Attention
    draft: Draft | None = None


# The dimensions of Qwen3.8-27B reproduce the published totals exactly. Its draft was published as a
# total only: these dimensions are one decomposition of it that fits, an inference.
MODELS = {
    "qwen3.8-27b": Model(
        gdn=KNOWN_SHAPES["27b"],
        ffn=17408,
        vocabulary=248320,
        attention=Attention(24, 4, 256, gated=True),
        draft=Draft(5, Attention(32, 8, 128), 121600, 2048),
    ),
}


def padded(rows: int, multiple: int) -> int:
    return -(-rows // multiple) * multiple


def target(model: Model, pad_rows: int) -> list[Matrix]:
    """The target's matrices. `pad_rows`: the rows of the concatenated GDN input projection are
    padded to a multiple of it."""
    c, hidden = model.gdn, model.gdn.hidden_size
    gdn, attention = len(c.gdn_layers), c.num_layers - len(c.gdn_layers)
    rows = c.conv_dim + c.value_dim + 2 * c.num_v_heads
    a = model.attention
    return [
        Matrix("target", "gdn", "in_proj", rows, hidden, gdn, padded(rows, pad_rows)),
        Matrix("target", "gdn", "out_proj", hidden, c.value_dim, gdn),
        Matrix("target", "attention", "qkv_proj", a.in_rows, hidden, attention),
        Matrix("target", "attention", "o_proj", hidden, a.query, attention),
        Matrix("target", "ffn", "gate_up_proj", 2 * model.ffn, hidden, c.num_layers),
        Matrix("target", "ffn", "down_proj", hidden, model.ffn, c.num_layers),
        Matrix("target", "head", "lm_head", model.vocabulary, hidden),
    ]


def draft(model: Model) -> list[Matrix]:
    """The draft's matrices, context projection included; the mutable segment lies in the head."""
    d, hidden = model.draft, model.gdn.hidden_size
    if d is None:
        return []
    a = d.attention
    return [
        Matrix("draft", "draft", "draft.qkv_proj", a.in_rows, hidden, d.layers),
        Matrix("draft", "draft", "draft.o_proj", hidden, a.query, d.layers),
        Matrix("draft", "draft", "draft.gate_up_proj", 2 * model.ffn, hidden, d.layers),
        Matrix("draft", "draft", "draft.down_proj", hidden, model.ffn, d.layers),
        Matrix("context", "draft", "draft.context_proj", hidden, d.layers * hidden),
        Matrix("draft", "head", "draft.head", d.head_rows, hidden),
        Matrix("draft", "head", "draft.head.mutable", d.mutable_rows, hidden, owner="draft.head"),
    ]


def payload(matrices: Iterable[Matrix], form: Format) -> dict[str, int]:
    """Bytes by matrix name, an alias as zero. ValueError for an alias without its owner, a name
    twice, or a fraction of a byte."""
    found: dict[str, int] = {}
    aliases = []
    for m in matrices:
        if m.name in found:
            raise ValueError(f"matrix {m.name!r}: given twice")
        size = m.weights * form.bytes_per_weight
        if size.denominator != 1:
            raise ValueError(f"matrix {m.name!r}: {size} is no whole number of bytes")
        found[m.name] = 0 if m.owner else int(size)
        aliases += [m] if m.owner else []
    for m in aliases:
        if not found.get(m.owner):
            raise ValueError(f"matrix {m.name!r}: its owner {m.owner!r} is not counted")
    return found
