"""The lexer and the small preprocessor under the lint: nothing is lost, nothing crashes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_mps_fusion.metal_host.lint import lint_text
from torch_mps_fusion.metal_host.mutate import mutants_of_text
from torch_mps_fusion.metal_host.preprocess import readings
from torch_mps_fusion.metal_host.scopes import statements
from torch_mps_fusion.metal_host.tokens import arguments, closing, lex

_WORDS = """double device float kernel void threadgroup template struct x 1 0x1F 1.5e-3f // /* */
[[ ]] :: coherent(device) atomic_thread_fence( mem_flags::mem_device R"( "a" é"""
_LINES = ["#define X ", "#if 1\n", "#endif\n", "#else\n", "\\\n"]
PIECES = st.sampled_from([*"(){}[]<>;,*&#\\\"'/ \n\t=:.+-!~", *re.split(r"\s+", _WORDS), *_LINES])
TEXTS = st.lists(PIECES, max_size=60).map("".join)


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_places_are_right_and_nothing_raises(text: str) -> None:
    source = lex(text)
    spans = []
    for token in (*source.tokens, *source.comments):
        assert text[token.start : token.end] == token.text
        assert token.line == text.count("\n", 0, token.start) + 1
        spans.append((token.start, token.end))
    spans.sort()
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False)), "tokens overlap"
    lint_text(text)
    for mutant in mutants_of_text(text):
        assert mutant.text.count("\n") == text.count("\n")


@settings(max_examples=100, deadline=None)
@given(st.lists(PIECES.filter(lambda p: not set(p) & set("#\"'/\\R")), max_size=40).map(" ".join))
def test_every_character_is_in_a_token(text: str) -> None:
    rest = "".join(t.text for t in lex(text).tokens)
    assert rest == "".join(text.split())


def test_brackets_and_arguments() -> None:
    tokens = lex("f(a, g(b, c)[d, e], {h, i});").tokens
    assert tokens[closing(tokens, 1)].start == 26
    assert ["".join(t.text for t in a) for a in arguments(tokens, 1)] == [
        "a",
        "g(b,c)[d,e]",
        "{h,i}",
    ]


CONDITIONS = {
    "#ifdef MSL_GPU\nA\n#else\nB\n#endif": ({"B"}, {"B"}),
    "#if defined(UNKNOWN)\nA\n#else\nB\n#endif": ({"B"}, {"A"}),
    "#if __METAL_VERSION__ >= 310 && !defined(MSL_GPU)\nA\n#elif 1\nB\n#endif": ({"A"}, {"A"}),
    "#if 0\nA\n#elif UNKNOWN > 0\nB\n#else\nC\n#endif": ({"C"}, {"B"}),
    "#define N 3\n#if N == 3\nA\n#endif\n#undef N\n#ifdef N\nB\n#endif": ({"A"}, {"A"}),
    "#ifndef GUARD\n#define GUARD\nA\n#endif": ({"A"}, set()),
    "#if 0\n#if 1\nA\n#else\nB\n#endif\n#else\nC\n#endif": ({"C"}, {"C"}),
    "#if (2 + 3) * 2 == 10 // comment\nA\n#endif": ({"A"}, {"A"}),
    "/* #if 0 */ A\n// #if 0\nB": ({"A", "B"}, {"A", "B"}),
}


@pytest.mark.parametrize("text", CONDITIONS)
def test_conditions(text: str) -> None:
    made = readings("a.metal", text, lambda path: None, 310)
    assert tuple({t.text for t in reading.tokens} for reading in made) == CONDITIONS[text]


def test_statements_know_where_they_are() -> None:
    text = """namespace n { constant int a[2] = {1, 2}; }
struct S { int b; void f() { c(); } };
template <int N = 3> [[kernel]] void k(int p = 1) { if (p) { float4 v = {d, 1}; } }
"""
    scopes = {
        "".join(t.text for t in s.tokens): s.scope for s in statements(lex(text).tokens) if s.tokens
    }
    assert scopes["constantinta[2]={1,2};"] == "namespace"
    assert scopes["intb;"] == "struct"
    assert scopes["c();"] == "function"
    assert scopes["float4v={d,1};"] == "kernel"
