"""Mutants of a shader: each lacks one thing that orders memory; a suite can demand all be caught.

    from torch_mps_fusion.metal_host.mutate import mutants, hunt

    def judge(mutant):                  # run the mutant with the checking build
        ...
        return "data race on buffer(1)" # what was reported, or None when nothing was

    explained = {"drop-barrier@shader.metal:31#0": "why it changes nothing"}
    report = hunt(mutants("shader.metal"), judge, explained)
    assert not report.survivors, report

A mutant that no run can tell from the original is *equivalent*: `explained` maps its id to the
proof.  An explained mutant that is caught after all, or an explanation of an id that does not
exist, is an error of the suite and is listed in `report.stale`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .compiler import METAL_VERSION
from .preprocess import readings
from .tokens import Token, arguments, closing, lex

KINDS = ("drop-fence", "drop-barrier", "drop-flag", "drop-coherent", "weaken-order", "weaken-scope")
_BARRIERS = ("threadgroup_barrier", "simdgroup_barrier")
_FENCE = "atomic_thread_fence"
# one step weaker in each direction; two steps are implied by one that is caught
_WEAKER_ORDERS = {
    "memory_order_seq_cst": ("memory_order_relaxed",),
    "memory_order_acq_rel": ("memory_order_acquire", "memory_order_release"),
    "memory_order_acquire": ("memory_order_relaxed",),
    "memory_order_release": ("memory_order_relaxed",),
}
_WEAKER_SCOPES = {
    "thread_scope_system": "thread_scope_device",
    "thread_scope_device": "thread_scope_threadgroup",
    "thread_scope_threadgroup": "thread_scope_simdgroup",
    "thread_scope_simdgroup": "thread_scope_thread",
}


@dataclass(frozen=True)
class Mutant:
    """One changed shader.

    id: kind@file:line#n, n counting the mutants of one kind on one line.
    path: the file that was changed (the shader or one of its local includes), as it was reached.
    text: the whole new text of that file.
    """

    id: str
    kind: str
    path: str
    line: int
    description: str
    text: str

    def write(self, directory: str | os.PathLike[str], shader: str | os.PathLike[str]) -> Path:
        """Copy the shader and its local includes to a directory, with this change.

        Returns the new shader's path.  ValueError: an include lies outside the shader's directory.
        """
        root = Path(shader).parent
        for path in sources(shader):
            relative = os.path.relpath(path, root)
            if relative.startswith(".."):
                raise ValueError(f"shader: {shader} includes {path}, outside its own directory")
            target = Path(directory, relative)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(self.text if path == self.path else Path(path).read_text())
        return Path(directory, Path(shader).name)


@dataclass
class Report:
    """What became of the mutants: id -> what was reported, or the explanation."""

    caught: dict[str, str] = field(default_factory=dict)
    explained: dict[str, str] = field(default_factory=dict)
    survivors: list[Mutant] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{len(self.caught)} caught, {len(self.explained)} explained"]
        lines += [f"survives: {m.id}: {m.description}" for m in self.survivors]
        lines += [f"stale explanation: {i}" for i in self.stale]
        return "\n".join(lines)


def sources(shader: str | os.PathLike[str]) -> list[str]:
    """The shader and its local includes, each once, in the order in which they are met."""
    out: list[str] = []

    def visit(path: str) -> None:
        if path in out:
            return
        out.append(path)
        for d in lex(Path(path).read_text()).directives:
            if d.word == "include" and d.rest.startswith('"'):
                target = os.path.normpath(os.path.join(os.path.dirname(path), d.rest.split('"')[1]))
                if os.path.isfile(target):
                    visit(target)

    visit(os.fspath(shader))
    return out


def mutants(shader: str | os.PathLike[str], kinds: Sequence[str] = KINDS) -> list[Mutant]:
    """All mutants of a shader and its local includes.

    kinds: a selection of KINDS; ValueError for an unknown one.  OSError when a file cannot be read.
    """
    unknown = set(kinds) - set(KINDS)
    if unknown:
        raise ValueError(f"kinds: got {sorted(unknown)}, accepted: {', '.join(KINDS)}")
    root = os.path.dirname(os.fspath(shader))
    out: list[Mutant] = []
    for path in sources(shader):
        text = Path(path).read_text()
        out += mutants_of_text(text, path, os.path.relpath(path, root or "."), kinds)
    return out


def mutants_of_text(
    text: str, path: str = "shader.metal", name: str | None = None, kinds: Sequence[str] = KINDS
) -> list[Mutant]:
    """Mutants of one text; what only other builds see (#ifdef MSL_GPU) is left alone.

    name: what the ids call it (default: path).
    """
    out: list[Mutant] = []
    count: dict[tuple[str, int], int] = {}
    seen = _compiled(path, text)
    for kind, at, end, new, description in _edits(lex(text).tokens):
        if kind not in kinds or at not in seen:
            continue
        line = text.count("\n", 0, at) + 1
        n = count[kind, line] = count.get((kind, line), -1) + 1
        # the replacement keeps the line breaks of what it replaces, so that places stay the same
        changed = text[:at] + new + "\n" * text.count("\n", at, end) + text[end:]
        if "\n" in text[at:end] and _in_directive(text, at):
            changed = text[:at] + new + "\\\n" * text.count("\n", at, end) + text[end:]
        out.append(
            Mutant(f"{kind}@{name or path}:{line}#{n}", kind, path, line, description, changed)
        )
    return out


def _compiled(path: str, text: str) -> set[int]:
    """Offsets of the tokens that a build for Metal can see, and of their ends."""
    seen: set[int] = set()
    for reading in readings(path, text, lambda _: None, METAL_VERSION):
        for tokens in (reading.tokens, *reading.macros.values()):
            seen.update(offset for t in tokens for offset in (t.start, t.end))
    return seen


def _in_directive(text: str, at: int) -> bool:
    start = text.rfind("\n", 0, at) + 1
    while start >= 2 and text[start - 2] == "\\":
        start = text.rfind("\n", 0, start - 1) + 1
    return text[start:at].lstrip().startswith("#")


Edit = tuple[str, int, int, str, str]  # kind, from, to, replacement, description


def _edits(tokens: Sequence[Token]) -> Iterator[Edit]:
    for i, t in enumerate(tokens):
        call = i + 1 < len(tokens) and tokens[i + 1].text == "("
        if t.kind != "id" or not call or (i and tokens[i - 1].text in (".", "->")):
            continue
        end = tokens[closing(tokens, i + 1)].end
        if t.text == "coherent":
            scope = "".join(a.text for a in arguments(tokens, i + 1)[0])
            yield "drop-coherent", t.start, end, "", f"coherent({scope}) taken away"
        elif t.text in _BARRIERS or t.text == _FENCE:
            yield from _call_edits(tokens, i, end)


def _call_edits(tokens: Sequence[Token], i: int, end: int) -> Iterator[Edit]:
    t = tokens[i]
    start = tokens[i - 2].start if i >= 2 and tokens[i - 1].text == "::" else t.start
    drop = "drop-fence" if t.text == _FENCE else "drop-barrier"
    yield drop, start, end, "(void)0", f"{t.text} taken away"
    given = arguments(tokens, i + 1)
    for argument in given:
        yield from _flag_edits(t.text, argument)
    if t.text == _FENCE:
        yield from _fence_edits(given)


def _flag_edits(call: str, argument: Sequence[Token]) -> Iterator[Edit]:
    for a in argument:
        if a.text.startswith("mem_") and a.text not in ("mem_flags", "mem_none"):
            yield "drop-flag", a.start, a.end, "mem_none", f"{call} without {a.text}"


def _fence_edits(given: Sequence[Sequence[Token]]) -> Iterator[Edit]:
    scoped = False
    for argument in given:
        for a in argument:
            for weaker in _WEAKER_ORDERS.get(a.text, ()):
                yield "weaken-order", a.start, a.end, weaker, f"{a.text} weakened to {weaker}"
            if a.text in _WEAKER_SCOPES:
                weaker = _WEAKER_SCOPES[a.text]
                yield "weaken-scope", a.start, a.end, weaker, f"{a.text} weakened to {weaker}"
            scoped = scoped or a.text.startswith("thread_scope")
    if not scoped and len(given) == 2 and given[1]:
        at = given[1][-1].end
        weaker = "thread_scope_threadgroup"
        yield (
            "weaken-scope",
            at,
            at,
            f", {weaker}",
            f"the default device scope weakened to {weaker}",
        )


def hunt(
    todo: Iterable[Mutant],
    judge: Callable[[Mutant], str | None],
    explained: Mapping[str, str] | None = None,
) -> Report:
    """Judge every mutant.

    judge: what was reported about a mutant, or None when nothing was.
    explained: id -> why no run can tell that mutant from the original.
    """
    reasons = dict(explained or {})
    report = Report()
    for mutant in todo:
        said = judge(mutant)
        reason = reasons.pop(mutant.id, None)
        if said is not None:
            report.caught[mutant.id] = said
            if reason is not None:
                report.stale.append(mutant.id)
        elif reason is not None:
            report.explained[mutant.id] = reason
        else:
            report.survivors.append(mutant)
    report.stale += reasons
    return report
