"""The tokenizers of Hugging Face's language models, as ours."""

from __future__ import annotations

from pathlib import Path

from transduce.data.tokens.foreign import tag_of, token_names, with_ids
from transduce.data.tokens.tokenizer import BEGIN, END, PAD, SPECIALS, UNKNOWN, Tokens
from transduce.errors import ModelError
from transduce.interop.imports.parts.configuration import Configuration
from transduce.interop.imports.parts.tokenizer_file import (
    JSON,
    read_tokenizer_file,
    tokens_of,
    using,
)
from transduce.interop.imports.parts.vocabulary import Layout


def read_language_tokens(folder: Path, config: Configuration, rows: int) -> tuple[Tokens, Layout]:
    """The tokens of a folder, and which of the `rows` of embeddings each of them has.

    Raises ModelError, with the reason.
    """
    parts = read_tokenizer_file(folder / JSON)
    with using(folder / JSON):
        names = token_names(parts)
        unknown = parts["model"].get("unk_token")
        silent = {one["content"] for one in parts["added_tokens"] if one.get("special")}
        if len(names) > rows:
            raise ModelError(f"{folder} has {rows} embeddings for {len(names)} tokens")
        names = [name or f"unused_{row}" for row, name in enumerate([*names, *[""] * rows][:rows])]
        layout, special, tags = _arrange(names, silent, unknown, config, folder)
        text = with_ids(parts, special, layout.names[: len(layout.names) - len(tags)], tags)
        tokens = tokens_of(text)
    if len(tokens) != len(layout.rows):
        raise ModelError(f"{folder / JSON}: some of its tokens have the same name")
    return tokens, layout


def _arrange(
    names: list[str],
    silent: set[str],
    unknown: str | None,
    config: Configuration,
    folder: Path,
) -> tuple[Layout, dict[str, str | None], dict[str, str]]:
    """The layout, what our special tokens are called there, and the other special ones."""
    end = config.token("eos_token_id", len(names))
    if end is None:
        raise ModelError(f"{folder}: its configuration has no eos_token_id, which ends texts")
    begin = config.token("bos_token_id", len(names))
    padding = config.token("pad_token_id", len(names))
    found: list[int | None] = [None] * len(SPECIALS)
    found[UNKNOWN] = names.index(unknown) if unknown in names else None
    found[END] = end
    found[BEGIN] = end if begin is None else begin
    found[PAD] = padding
    owner: dict[int, int] = {}
    for one in (END, BEGIN, UNKNOWN, PAD):  # which of two keeps a row
        row = found[one]
        if row is not None:
            owner.setdefault(row, one)
    kept = set(owner.values())
    others = [row for row in range(len(names)) if row not in owner]
    rest = [row for row in others if names[row] not in silent]
    last = [row for row in others if names[row] in silent]
    tags = {names[row]: _fresh(tag_of(names[row]), names) for row in last}
    special = {
        ours: names[row] if one in kept and (row := found[one]) is not None else None
        for one, ours in enumerate(SPECIALS)
    }
    layout = Layout(
        (*found, *rest, *last),
        tuple(names[row] for row in (*rest, *last)),
        len(names),
        frozenset(range(len(SPECIALS))) - kept,
    )
    return layout, special, tags


def _fresh(tag: str, names: list[str]) -> str:
    """A name that no other token has."""
    while f"<{tag}>" in SPECIALS:
        tag += "_"
    return tag
