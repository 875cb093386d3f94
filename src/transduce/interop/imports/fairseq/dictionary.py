"""Dictionaries of fairseq, and codes of subword-nmt, as tokens of ours.

A dictionary is a file dict.LANGUAGE.txt, a token and its count in each line; four special tokens
stand before them. Codes (https://github.com/rsennrich/subword-nmt) are merges of byte pair
encoding; a subword within a word ends in @@.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, SPECIALS, UNKNOWN, Tokens
from transduce.errors import ModelError, TokensError
from transduce.interop.imports.parts.vocabulary import Layout, arrange

THEIRS = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3
CODES = ("bpe.code", "bpe.codes", "bpecodes", "code", "codes", "bpe_codes")
WITHIN = "@@"  # ends a subword that is not the last one of its word
LAST = "</w>"  # ends the last one, in codes


@dataclass(frozen=True)
class Vocabulary:
    tokens: Tokens
    layout: Layout


def read_dictionary(path: Path) -> list[str]:
    """The tokens of a dictionary by id, special ones included. Raises ModelError."""
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error})") from None
    names = []
    for number, line in enumerate(lines, start=1):
        line = line.removesuffix("\r").removesuffix(" #fairseq:overwrite")
        if not line:
            continue
        name, space, count = line.rpartition(" ")
        if not space or not count.isdecimal():
            raise ModelError(f"{path}, line {number}, is no token with its count")
        names.append(name)
    return [*THEIRS, *names]


def read_codes(path: Path) -> list[tuple[str, str]]:
    """The merges of subword-nmt, the most frequent first. Raises ModelError."""
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error})") from None
    if not lines[0].startswith("#version: 0.2"):
        raise ModelError(f"{path} does not begin with '#version: 0.2', as codes of subword-nmt do")
    merges: dict[tuple[str, str], None] = {}
    for number, line in enumerate(lines[1:], start=2):
        parts = line.removesuffix("\r").strip(" ").split(" ")
        if parts == [""]:
            continue
        if len(parts) != 2:
            raise ModelError(f"{path}, line {number}, is not two subwords that are joined")
        merges.setdefault((parts[0], parts[1]))
    return list(merges)


def vocabulary_of(names: Sequence[str], codes: Sequence[tuple[str, str]] | None) -> Vocabulary:
    """With codes, subwords; without, symbols that stand between spaces.

    fairseq begins every target with its END.
    """
    layout = arrange(names, ("<pad>", "<unk>", "</s>", "</s>"))
    if codes is None:
        symbols = recipe.Tokens(level="symbol")
        return Vocabulary(_checked(symbols, layout.names), layout)
    return _subwords(layout, codes)


def _checked(settings: recipe.Tokens, names: Sequence[str]) -> Tokens:
    try:
        return Tokens.of_vocabulary(settings, names)
    except TokensError as error:
        raise ModelError(f"the dictionary cannot be used: {error}") from None


def _subwords(layout: Layout, codes: Sequence[tuple[str, str]]) -> Vocabulary:
    """Subwords as the codes write them: the last one of a word ends in </w>.

    What the codes make and the dictionary has not is unknown to the model: it gets rows of its
    own, which are copies of the unknown token's.
    """
    vocabulary = {name: number for number, name in enumerate(SPECIALS)}
    for name in layout.names:
        within = name.endswith(WITHIN) and name != WITHIN
        spelt = name.removesuffix(WITHIN) if within else name + LAST
        while spelt in vocabulary:
            spelt += "_"
        vocabulary[spelt] = len(vocabulary)
    known = len(vocabulary)
    for first, second in codes:
        for piece in (first, second, first + second):
            vocabulary.setdefault(piece, len(vocabulary))
    model = models.BPE(
        vocabulary, list(codes), unk_token=SPECIALS[UNKNOWN], end_of_word_suffix=LAST
    )
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder(suffix=LAST)
    added = len(vocabulary) - known
    unknown = layout.rows[UNKNOWN]
    assert unknown is not None
    wider = replace(
        layout,
        rows=(*layout.rows, *[unknown] * added),
        unwritten=layout.unwritten | frozenset(range(known, known + added)),
    )
    assert BEGIN in wider.unwritten
    return Vocabulary(Tokens(tokenizer), wider)
