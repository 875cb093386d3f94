"""The vocabularies of a folder of CTranslate2, as tokens of ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from transduce import recipe
from transduce.data.tokens.tokenizer import SPECIALS, Tokens
from transduce.errors import ModelError, TokensError
from transduce.interop.imports.parts.configuration import Configuration
from transduce.interop.imports.parts.vocabulary import Layout, arrange

PADS = ("<blank>", "<pad>", "<PAD>", "[PAD]")
USUAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}


@dataclass(frozen=True)
class Vocabularies:
    source: Tokens
    target: Tokens
    layouts: tuple[Layout, Layout]
    """Of source and target."""


def read_vocabularies(
    folder: Path, config: Configuration, own: tuple[Tokens, Tokens] | None
) -> Vocabularies:
    """Our own tokens where there are some; otherwise symbols that stand between spaces.

    Raises ModelError where a file is missing or damaged.
    """
    names = [_names(folder, side) for side in ("source", "target")]
    unknown = config.text("unk_token", USUAL["unk_token"])
    # It adds the unknown token where a file has none.
    names = [one if unknown in one else [*one, unknown] for one in names]
    layouts = [_arranged(folder, one, config) for one in names]
    alike = all(layout.rows == tuple(range(layout.size)) for layout in layouts)
    if own is not None and not (alike and [tokens.names() for tokens in own] == names):
        raise ModelError(f"the tokens of {folder} are not those of the vocabularies beside them")
    try:
        symbols = recipe.Tokens(level="symbol")
        source, target = own or (Tokens.of_vocabulary(symbols, one.names) for one in layouts)
    except TokensError as error:
        raise ModelError(f"the vocabulary of {folder} cannot be used: {error}") from None
    if source.to_json() == target.to_json():
        source = target
    return Vocabularies(source, target, (layouts[0], layouts[1]))


def _arranged(folder: Path, names: list[str], config: Configuration) -> Layout:
    specials = {key: config.text(key, usual) for key, usual in USUAL.items()}
    if config.values.get("decoder_start_token", "") is None:
        raise ModelError(
            f"{folder} has no decoder_start_token: every target begins with a token that the "
            f"caller gives, such as a language, which is not imported from CTranslate2"
        )
    if specials["eos_token"] not in names:
        raise ModelError(f"{folder}: the token {specials['eos_token']} ends texts, and is missing")
    begin = config.text("decoder_start_token", specials["bos_token"])
    padding = next((name for name in PADS if name in names), None)
    return arrange(names, (padding, specials["unk_token"], begin, specials["eos_token"]))


def _names(folder: Path, side: str) -> list[str]:
    for stem in (f"{side}_vocabulary", "shared_vocabulary"):
        for ending in (".json", ".txt"):
            path = folder / f"{stem}{ending}"
            if path.is_file():
                return _read_names(path)
    raise ModelError(f"{folder} has no {side}_vocabulary.json or .txt, and no shared_vocabulary")


def _read_names(path: Path) -> list[str]:
    try:
        text = path.read_bytes().decode("utf-8")
        names = json.loads(text) if path.suffix == ".json" else text.removesuffix("\n").split("\n")
        json.dumps(names, ensure_ascii=False).encode("utf-8")  # fails for half a character
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({error})") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"{path} is not a list of tokens")
    names = [name.removesuffix("\r") for name in names]
    if len(names) <= len(SPECIALS):
        raise ModelError(f"{path} has {len(names)} tokens, which are no vocabulary")
    return names
