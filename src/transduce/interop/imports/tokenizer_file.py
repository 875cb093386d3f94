"""None"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transduce.data.tokens.learn import check_patterns
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError, TokensError
from transduce.interop.imports.configuration import check_vocabulary, describe, read_json

# ----------------------------------------------------------------------------------------------
# tokenizer.json of Hugging Face: read, and checked for what all readers rely on.

JSON = "tokenizer.json"


def read_tokenizer_file(path: Path) -> dict[str, Any]:
    """The parts of a tokenizer.json: `model` with its `vocab`, and `added_tokens` with their ids.

    Raises ModelError where one of them is missing or of another type, or two tokens have one id.
    """
    if not path.is_file():
        raise ModelError(
            f"{path.parent} has no {JSON}; write one with transformers: "
            f"AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    return check_tokenizer(read_json(path), path)


def check_tokenizer(parts: dict[str, Any], path: Path) -> dict[str, Any]:
    """The same for parts that were read already."""
    model, added = parts.get("model"), parts.get("added_tokens") or []
    if not isinstance(model, dict) or not isinstance(model.get("type"), str):
        raise ModelError(f"{path} has no model of a tokenizer; download it again")
    if not isinstance(added, list) or not all(map(_is_token, added)):
        raise ModelError(f"{path}: added_tokens is not a list of tokens with their ids")
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, list):
        if not all(map(_is_scored, vocabulary)):
            raise ModelError(f"{path} has a vocabulary that is no list of tokens and their scores")
        numbers = {name: number for number, (name, _) in enumerate(vocabulary)}
    else:
        numbers = dict(check_vocabulary(vocabulary, path))
    for token in added:
        if numbers.setdefault(token["content"], token["id"]) != token["id"]:
            raise ModelError(
                f"{path}: the token {describe(token['content'])} has two ids, "
                f"{numbers[token['content']]} and {describe(token['id'])}"
            )
    check_vocabulary(numbers, path)
    return {**parts, "added_tokens": added}


@contextmanager
def using(path: Path) -> Iterator[None]:
    """While the rest of a tokenizer is read, whose parts have many forms: raises ModelError."""
    try:
        yield
    except TokensError as error:
        raise ModelError(f"{path} cannot be used: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, StopIteration) as error:
        raise ModelError(
            f"{path} is damaged, or of another kind ({type(error).__name__}); download it again"
        ) from None


def tokens_of(text: str) -> Tokens:
    """Tokens of a JSON that was made from others' files. Raises TokensError where the library that
    cuts texts refuses it."""
    check_patterns(json.loads(text))
    try:
        return Tokens.from_json(text)
    except TokensError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # a panic of the Rust library is not an Exception; all else is raised again
        reason = " ".join(str(error).split())[:200]
        raise TokensError(f"it is not a tokenizer, or is damaged ({reason})") from None


def _is_token(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("content"), str)
        and isinstance(value.get("id"), int)
        and not isinstance(value["id"], bool)
    )


def _is_scored(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], int | float)
    )
