"""Vocabularies learned from a corpus, cached on disk: subwords of a large one take longer to learn
than all else before the first update.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import tokenizers

from transduce import recipe
from transduce.data.cache.eviction import note_use
from transduce.data.cache.tokenised import content_key
from transduce.data.index.corpus import index_stream
from transduce.data.tokens.sides import train_tokens
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import CheckpointError
from transduce.registry import register
from transduce.storage import write_json

FORMAT = 3  # format version: increase when other tokens are learned from the same text


def learned_tokens(
    data: recipe.Data, print_line: Callable[[str], None], cache_folder: Path
) -> tuple[Tokens, Tokens]:
    """`train_tokens`, from the cache if the same were learned from the same text before: of a
    streamed corpus, from files of the same versions.

    A cache that cannot be read is made again, and one that cannot be written is not.
    """
    sides = data.tokens
    asked = [one for one in (sides.both, sides.source, sides.target) if one is not None]
    # What a plugin makes of a text may change with it.
    if any(one.file is not None or one.level in register.tokenizer for one in asked):
        return train_tokens(data, print_line)
    parts = [FORMAT, tokenizers.__version__, sides.model_dump(mode="json")]
    parts += [data.concatenate.separator] if data.concatenate else []
    parts += ["unknown tags"] if data.unknown_tags else []
    parts += ["split tags"] if data.split_tags else []
    index = None
    if data.streaming:  # its contents would take long to read
        index = index_stream(data.train, data, cache_folder, print_line)
        parts += [data.temperature, data.train.model_dump(mode="json"), index.identity()]
        key = sha256(json.dumps(parts).encode()).hexdigest()
    else:
        key = content_key(data.train, data.folder, json.dumps(parts))
    path = cache_folder / f"{key}.tokens.json"
    kept = _load(path, len(asked))
    if kept is not None:
        tokens, said = kept
        note_use(path)
        for sentence in said:
            print_line(sentence)
        return tokens[0], tokens[-1]
    said = []

    def hear(sentence: str) -> None:
        said.append(sentence)
        print_line(sentence)

    source, target = train_tokens(data, hear, index)
    made = [source.to_json()] if target is source else [source.to_json(), target.to_json()]
    with suppress(OSError, CheckpointError):  # where the corpus cannot be cached either, it is said
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"tokens": made, "said": said})
    return source, target


def _load(path: Path, count: int) -> tuple[list[Tokens], list[str]] | None:
    """Cached tokens, and what was said when they were learned; None if missing or damaged."""
    try:
        kept = json.loads(path.read_text("utf-8"))
        tokens = [Tokens.from_json(text) for text in kept["tokens"]]
        return (tokens, list(kept["said"])) if len(tokens) == count else None
    except Exception:  # of the Rust library: no other class
        return None
