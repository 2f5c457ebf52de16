"""What this package's compiler accepts and Metal's does not.

    from torch_mps_fusion.metal_host.lint import lint
    for finding in lint("shader.metal"):
        print(finding)                     # shader.metal:12: double: Metal has no double

The language level and the wish for explicit multiply-adds are stated in the file, in comments:

    // metal_host: msl 3.2
    // metal_host: explicit-fma

Without the first the level is 3.1.  The second asks for a finding at every floating-point
`a * b + c` that a compiler may contract.  That rule and the one on recursion look at what the
compiler makes of the file (`lint_compiled`); the others need only the text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import rules
from .preprocess import readings
from .tokens import lex

DEFAULT_LEVEL = (3, 1)
LEVELS = ((2, 3), (2, 4), (3, 0), (3, 1), (3, 2), (4, 0), (4, 1))
_DIRECTIVE = re.compile(r"(?://|/\*)\s*metal_host:\s*(.*?)\s*(?:\*/)?\s*$", re.S)


_MISPLACED = re.compile(r"\bmetal_host:\s*(msl|explicit-fma)\b")


@dataclass(frozen=True, order=True)
class Finding:
    """One place that Metal would refuse, or that breaks a rule the file has set itself."""

    file: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.message}"


@dataclass(frozen=True)
class Wishes:
    """What a file's `// metal_host:` comments ask for."""

    level: tuple[int, int] = DEFAULT_LEVEL
    explicit_fma: bool = False


def parse_level(text: str) -> tuple[int, int]:
    """ "3.2" -> (3, 2).  ValueError names the levels that are known."""
    known = ", ".join(f"{a}.{b}" for a, b in LEVELS)
    m = re.fullmatch(r"(\d)\.(\d)", text)
    if not m or (int(m[1]), int(m[2])) not in LEVELS:
        raise ValueError(f"msl: got {text!r}, accepted: {known}")
    return int(m[1]), int(m[2])


def wishes(text: str, file: str = "") -> tuple[Wishes, list[Finding]]:
    """The directives of one file, and findings about those that are not understood."""
    level, explicit, findings = DEFAULT_LEVEL, False, []
    for comment in lex(text).comments:
        m = _DIRECTIVE.match(comment.text)
        if not m:
            if _MISPLACED.search(comment.text):
                message = "metal_host: must begin its comment"
                findings.append(Finding(file, comment.line, "directive", message))
            continue
        words = m[1].split()
        try:
            if words == ["explicit-fma"]:
                explicit = True
            elif len(words) == 2 and words[0] == "msl":
                level = parse_level(words[1])
            else:
                raise ValueError(f"got {m[1]!r}, accepted: msl LEVEL, explicit-fma")
        except ValueError as e:
            findings.append(Finding(file, comment.line, "directive", str(e)))
    return Wishes(level, explicit), findings


def _load(path: str) -> str | None:
    return Path(path).read_text() if os.path.isfile(path) else None


def lint_text(
    text: str,
    file: str = "shader.metal",
    level: tuple[int, int] | None = None,
    load: Callable[[str], str | None] = _load,
) -> list[Finding]:
    """Findings about one text, sorted by place.

    file: what findings call it; local includes are looked for beside it through `load`.
    level: overrides what the file declares.
    """
    asked, findings = wishes(text, file)
    level = level or asked.level
    found = set(findings)
    for reading in readings(file, text, load, level[0] * 100 + level[1] * 10):
        for rule in rules.RULES:
            for line_of, name, message in rule(reading, level):
                found.add(Finding(line_of[0] or file, line_of[1], name, message))
    return sorted(found)


def lint(path: str | os.PathLike[str], level: tuple[int, int] | None = None) -> list[Finding]:
    """Findings about one .metal file and its local includes, from the text alone.

    OSError when it cannot be read.
    """
    path = os.fspath(path)
    return lint_text(Path(path).read_text(), path, level)
