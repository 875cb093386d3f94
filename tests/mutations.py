"""Small changes of a source file that turn its logic into another: what `mutants.py` tries."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SILENT = {"strict", "exist_ok", "missing_ok", "parents", "ensure_ascii", "non_blocking", "dpi"}

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Add, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
TURNED = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One place of a file, and what stands there instead."""

    file: str
    line: int
    last: int
    """Lines of its statement as far as the change goes."""
    start: int
    end: int
    """Bytes of the file that are replaced."""
    old: str
    new: str

    def applied(self, text: bytes) -> bytes:
        assert text[self.start : self.end] == self.old.encode(), "the file has changed"
        return text[: self.start] + self.new.encode() + text[self.end :]

    def __str__(self) -> str:
        old, new = " ".join(self.old.split()), " ".join(self.new.split())
        return f"{self.file}:{self.line}\n    - {old}\n    + {new or '(nothing)'}"


def mutants_of(file: str, text: str, picture: bool = False) -> list[Mutant]:
    """Every mutant of a file, in order; numbers in one that draws a `picture` are left alone."""
    lengths = [0]
    for row in text.splitlines(keepends=True):
        lengths.append(lengths[-1] + len(row.encode()))
    raw = text.encode()
    found = []
    for node, line, new in _changes(ast.parse(text), picture):
        start = lengths[node.lineno - 1] + node.col_offset
        end = lengths[node.end_lineno - 1] + node.end_col_offset
        old = raw[start:end].decode()
        if old != new:
            found.append(Mutant(file, line, node.end_lineno, start, end, old, new))
    return list(dict.fromkeys(found))


def _changes(tree: ast.AST, picture: bool) -> Iterator[tuple[Any, int, str]]:
    """What is replaced, the first line of its statement, and what stands there instead."""
    line = 1
    for node in _logic(tree):
        line = node.lineno if isinstance(node, ast.stmt | ast.excepthandler) else line
        yield from ((node, line, new) for new in _instead(node, picture))


def _logic(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that are run and decide something: no types, texts, checks or errors."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.JoinedStr | ast.Raise | ast.Assert | ast.Import):
                continue
            if isinstance(child, ast.keyword) and child.arg in SILENT:
                continue
            yield child
            yield from _logic(child)


def _instead(node: ast.AST, picture: bool) -> Iterator[str]:
    def changed(**fields: Any) -> str:
        other = copy.copy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        written = ast.unparse(other)
        return f"({written})" if isinstance(node, ast.expr) else written

    match node:
        case ast.Compare(ops=[op]):
            yield changed(ops=[SWAPPED[type(op)]()])
            if type(op) in TURNED:
                yield changed(ops=[TURNED[type(op)]()])
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in SWAPPED:
            text = isinstance(node, ast.BinOp) and _is_text(node)
            if not text:
                yield changed(op=SWAPPED[type(op)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not picture:
            yield f"({ast.unparse(operand)})"
        case ast.IfExp(body=body, orelse=other):
            yield changed(body=other, orelse=body)
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() as value) if not picture:
            yield str(value + 1)
        case ast.Constant(value=float() as value) if not picture:
            yield str(2 * value or 1.0)
        case ast.Name(id=name) if name in NAMES:
            yield NAMES[name]
        case ast.Slice(lower=lower, upper=upper, step=None):
            if lower is not None:
                yield ast.unparse(ast.Slice(None, upper, None))
            if upper is not None:
                yield ast.unparse(ast.Slice(lower, None, None))
        case ast.Expr(value=ast.Call()):
            yield "pass"
        case ast.AugAssign():
            yield "pass"
        case ast.Continue():
            yield "break"


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    texts = [isinstance(getattr(side, "value", None), str) for side in sides]
    return any(texts) or any(isinstance(side, ast.JoinedStr) for side in sides)
