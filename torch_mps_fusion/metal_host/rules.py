"""The lint's rules on tokens.

Each takes a Reading and an MSL level and yields ((file, line), rule, message).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from .preprocess import Reading
from .rules_pointers import pointers
from .scopes import Statement, depth_zero, statements, without_attributes
from .tokens import Token, arguments, closing

Place = tuple[str, int]
Found = Iterator[tuple[Place, str, str]]
Rule = Callable[[Reading, tuple[int, int]], Found]

# word -> (rule, message)
_WORDS = {
    "double": ("double", "Metal has no double"),
    "new": ("new-delete", "Metal has no new"),
    "delete": ("new-delete", "Metal has no delete"),
    "virtual": ("virtual", "Metal has no virtual functions"),
    "goto": ("goto", "Metal has no goto"),
    "try": ("exceptions", "Metal has no exceptions"),
    "catch": ("exceptions", "Metal has no exceptions"),
    "throw": ("exceptions", "Metal has no exceptions"),
    "dynamic_cast": ("rtti", "Metal has no dynamic_cast"),
    "typeid": ("rtti", "Metal has no typeid"),
    "thread_local": ("storage-class", "Metal has no thread_local"),
    "register": ("storage-class", "Metal has no register"),
    "asm": ("asm", "Metal has no inline assembly: keep it under #ifdef MSL_GPU"),
    "__asm__": ("asm", "Metal has no inline assembly: keep it under #ifdef MSL_GPU"),
    "co_await": ("coroutines", "Metal has no coroutines"),
    "co_yield": ("coroutines", "Metal has no coroutines"),
    "co_return": ("coroutines", "Metal has no coroutines"),
}

# word or pattern -> (first level that has it, what it is)
_SINCE: list[tuple[re.Pattern[str], tuple[int, int], str]] = [
    (re.compile(p), level, what)
    for p, level, what in (
        (r"simdgroup_(matrix|load|store|multiply\w*|(float|half)8x8)", (2, 3), "simdgroup_matrix"),
        (r"atomic_float", (3, 0), "atomic_float"),
        (r"bfloat[234]?|simdgroup_bfloat8x8|packed_bfloat[234]", (3, 1), "bfloat"),
        (r"atomic_thread_fence|thread_scope(_\w+)?", (3, 2), "atomic_thread_fence"),
        (r"coherent", (3, 2), "coherent(...)"),
        (r"os_log\w*", (3, 2), "logging"),
        (r"tensor_ops|cooperative_tensor|tensor_handle|tensor_inline", (4, 0), "tensors"),
        (r"required_threads_per_threadgroup", (4, 0), "required_threads_per_threadgroup"),
    )
]
_BFLOAT_LITERAL = re.compile(r"[0-9.].*[bB][fF]")
_HEX = re.compile(r"0[xX]")

ORDERS = ("relaxed", "acquire", "release", "acq_rel", "seq_cst")
ORDERS_SINCE = (4, 1)  # before, atomics have relaxed alone and the fence seq_cst too
FENCE, FENCE_CALL = ("relaxed", "seq_cst"), "atomic_thread_fence"


def dotted(level: tuple[int, int]) -> str:
    """(3, 2) -> "3.2"."""
    return f"{level[0]}.{level[1]}"


def _streams(reading: Reading) -> list[Sequence[Token]]:
    return [reading.tokens, *reading.used_macro_bodies()]


def words(reading: Reading, level: tuple[int, int]) -> Found:
    """Keywords of C++ that Metal lacks."""
    for stream in _streams(reading):
        for i, t in enumerate(stream):
            if (
                t.kind == "num"
                and not _HEX.match(t.text)
                and re.fullmatch(r"[0-9.].*[.eE].*[lL]", t.text)
            ):
                yield (t.file, t.line), "double", f"Metal has no long double: {t.text}"
            if t.kind != "id" or t.text not in _WORDS:
                continue
            before = stream[i - 1].text if i else ""
            if before in (".", "->", "::") or (t.text == "delete" and before == "="):
                continue
            rule, message = _WORDS[t.text]
            yield (t.file, t.line), rule, message


def features(reading: Reading, level: tuple[int, int]) -> Found:
    """Names that a later language level brought."""
    for stream in _streams(reading):
        for i, t in enumerate(stream):
            if t.kind == "num":
                if level < (3, 1) and _BFLOAT_LITERAL.fullmatch(t.text) and not _HEX.match(t.text):
                    yield (
                        (t.file, t.line),
                        "msl-level",
                        f"bfloat needs MSL 3.1, declared {dotted(level)}",
                    )
                continue
            if t.kind != "id" or (i and stream[i - 1].text in (".", "->")):
                continue
            for pattern, since, what in _SINCE:
                if level < since and pattern.fullmatch(t.text):
                    message = f"{what} needs MSL {dotted(since)}, declared {dotted(level)}"
                    yield (t.file, t.line), "msl-level", message


def memory_orders(reading: Reading, level: tuple[int, int]) -> Found:
    """Orders that the call does not have at this level."""
    for stream in _streams(reading):
        for i, t in enumerate(stream):
            call = t.kind == "id" and i + 1 < len(stream) and stream[i + 1].text == "("
            if not call or not re.fullmatch(r"atomic_\w+|(threadgroup|simdgroup)_barrier", t.text):
                continue
            for argument in arguments(stream, i + 1):
                yield from _order(t.text, argument, level)


def _order(call: str, argument: Sequence[Token], level: tuple[int, int]) -> Found:
    for k, t in enumerate(argument):
        m = re.fullmatch(r"memory_order_(\w+)", t.text)
        if t.text == "memory_order" and argument[k + 1 : k + 2] and argument[k + 1].text == "::":
            message = "write memory_order_relaxed, not memory_order::relaxed"
            yield (t.file, t.line), "memory-order", message
        if not m:
            continue
        order = m[1]
        place = (t.file, t.line)
        if order not in ORDERS:
            yield place, "memory-order", f"Metal has no memory_order_{order}"
        elif level < ORDERS_SINCE and order not in (FENCE if call == FENCE_CALL else ("relaxed",)):
            has = " and seq_cst" if call == FENCE_CALL else ""
            message = f"{call} takes relaxed{has} only below MSL 4.1, got memory_order_{order}"
            yield place, "memory-order", message


def lambdas(reading: Reading, level: tuple[int, int]) -> Found:
    """[captures](...) {...} or [captures] {...}."""
    for stream in _streams(reading):
        for i, t in enumerate(stream):
            if t.text != "[" or t.kind != "punct":
                continue
            before = stream[i - 1] if i else None
            if before and (
                before.kind in ("num", "str") or before.text in (")", "]", "[", "auto", "operator")
            ):
                continue
            if before and before.kind == "id" and before.text not in ("return", "case", "else"):
                continue
            end = closing(stream, i)
            if (
                end + 1 < len(stream)
                and stream[i + 1].text != "["
                and stream[end + 1].text in ("(", "{")
            ):
                yield (t.file, t.line), "lambda", "Metal has no lambda expressions"


def headers(reading: Reading, level: tuple[int, int]) -> Found:
    """Standard C and C++ headers, and the namespace std."""
    for include in reading.includes:
        m = re.match(r"<(.+)>", include.target)
        if m and not re.match(r"metal_|simd/|metal/|MetalPerformancePrimitives/", m[1]):
            yield (include.file, include.line), "header", f"Metal has no header <{m[1]}>"
        elif m and level < (4, 0) and re.match(r"metal_tensor|MetalPerformancePrimitives/", m[1]):
            message = f"<{m[1]}> needs MSL 4.0, declared {dotted(level)}"
            yield (include.file, include.line), "msl-level", message
    for stream in _streams(reading):
        for t, after in zip(stream, stream[1:], strict=False):
            if t.text == "std" and after.text == "::":
                yield (t.file, t.line), "header", "Metal has no namespace std: use metal"


def contraction(reading: Reading, level: tuple[int, int]) -> Found:
    """`#pragma METAL fp contract(off)` before the first function; nothing turns it on again."""
    off_at = None
    for text, file, line, at in reading.pragmas:
        m = re.fullmatch(
            r"(?:METAL\s+fp\s+contract\s*\(\s*(\w+)\s*\)|STDC\s+FP_CONTRACT\s+(\w+))", text
        )
        if not m:
            continue
        value = (m[1] or m[2]).lower()
        if value == "off":
            off_at = at if off_at is None else off_at
        else:
            yield (
                (file, line),
                "contraction",
                f"contract({value}) lets a * b + c round differently here",
            )
    first = _first_function(reading.tokens)
    if first is not None and (off_at is None or off_at > first[0]):
        message = "contraction is on: #pragma METAL fp contract(off) must come before the code"
        yield first[1], "contraction", message


def _first_function(tokens: Sequence[Token]) -> tuple[int, Place] | None:
    """(tokens before its body, place) of the first function that has a body."""
    for s in statements(tokens):
        if s.ends == "{" and s.scope in ("namespace", "struct") and s.tokens:
            if "(" not in [t.text for t in depth_zero(without_attributes(s.tokens))]:
                continue
            last = s.tokens[-1]
            return tokens.index(last), (last.file, s.tokens[0].line)
    return None


def threadgroup_variables(reading: Reading, level: tuple[int, int]) -> Found:
    """threadgroup T x; anywhere but in a kernel's body."""
    for s in statements(reading.tokens):
        if s.scope == "kernel" or s.ends != ";":
            continue
        plain = without_attributes(s.tokens)
        head = _declared(plain)
        if "threadgroup" in head and "*" not in head and "&" not in head and "(" not in head:
            t = next(t for t in plain if t.text == "threadgroup")
            message = "a threadgroup variable must be declared in a kernel's own body"
            yield (t.file, t.line), "threadgroup-variable", message


def _declared(tokens: Sequence[Token]) -> list[str]:
    """The words of a declaration up to its initialiser; none for using, typedef, return..."""
    top = [t.text for t in depth_zero(tokens)]
    if top[:1] and top[0] in ("using", "typedef", "return", "template", "friend", "case", "extern"):
        return []
    return top[: top.index("=")] if "=" in top else top


def program_scope(reading: Reading, level: tuple[int, int]) -> Found:
    """Variables outside functions live in the constant address space; static locals too."""
    for s in statements(reading.tokens):
        plain = without_attributes(s.tokens)
        if s.ends != ";" or not plain:
            continue
        words_ = _declared(_after_template(plain))
        static_only = s.scope in ("struct", "function", "kernel")
        if s.scope in ("init", "enum") or (static_only and "static" not in words_):
            continue
        if _is_variable(words_, s) and not {"constant", "threadgroup"} & set(words_):
            t = _after_template(plain)[0]
            message = "a program-scope or static variable must be in the constant address space"
            yield (t.file, t.line), "program-scope", message


def _after_template(tokens: Sequence[Token]) -> list[Token]:
    """What follows template <...>."""
    out = list(tokens)
    while len(out) > 1 and out[0].text == "template" and out[1].text == "<":
        depth = 0
        for k, t in enumerate(out):
            depth += (t.text == "<") - (t.text == ">") - 2 * (t.text == ">>")
            if k and depth <= 0:
                out = out[k + 1 :]
                break
        else:
            return []
    return out


_NOT_VARIABLES = {
    "struct",
    "class",
    "union",
    "enum",
    "namespace",
    "static_assert",
    "using",
    "typedef",
}


def _is_variable(words_: list[str], s: Statement) -> bool:
    if not words_ or _NOT_VARIABLES & set(words_) or "(" in words_ or "operator" in words_:
        return False
    names = [w for w in words_ if re.fullmatch(r"[A-Za-z_]\w*", w)]
    return len(names) >= 2 and words_[0] not in (
        "public",
        "private",
        "protected",
        "template",
        "extern",
    )


RULES: tuple[Rule, ...] = (
    words,
    features,
    memory_orders,
    lambdas,
    headers,
    contraction,
    threadgroup_variables,
    program_scope,
    pointers,
)
