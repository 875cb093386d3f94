"""A vocabulary extended by new tokens of another corpus: the ids of its tokens stay.

Characters, words, symbols and labels are added by frequency. BPE continues where it ended: further
pairs are merged in texts as the old vocabulary cuts them, after new characters have been added; so
every new token can occur. Of unigram vocabularies, pieces that are new are added with their scores;
their tags, which come last, move behind these.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any

from tokenizers import Tokenizer

from transduce import recipe
from transduce.data.tokens.learn import LONGEST_SUBWORD, SPACE, SPECIALS, UNKNOWN, byte_letters
from transduce.data.tokens.sentencepiece import HIDDEN
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import TokensError

UNKNOWN_NAME = SPECIALS[UNKNOWN]
WORDS = re.compile(r"[^\W_]+")


def extended(tokens: Tokens, settings: recipe.Tokens, texts: Iterable[str]) -> Tokens:
    """Tokens with further ones learned from texts, up to `size` in all; rarer ones than
    `min_count` are left out.

    Level, normalization and case are those of the old vocabulary. Raises TokensError where it
    cannot be extended.
    """
    if tokens.level == "byte":
        return tokens
    parts = json.loads(tokens.to_json())
    model = parts["model"]
    if model["type"] == "Unigram":
        return with_pieces(parts, _new_pieces([tokens], settings, texts))
    if tokens.tags and tokens.level in ("symbol", "label"):
        raise TokensError(
            f"a vocabulary of {tokens.level}s with tags cannot be extended; use "
            f"train.start.tokens: keep"
        )
    for tag, number in tokens.tags.items():  # otherwise they would move behind the new tokens
        model["vocab"][f"<{tag}>"] = number
    texts = [text for text in texts if text.strip()]
    capacity = max(settings.size - len(tokens), 0)
    counts = _new_units(tokens, texts)
    order = sorted(counts, key=lambda unit: (-counts[unit], unit))
    new = [unit for unit in order if counts[unit] >= settings.min_count][:capacity]
    number = len(tokens)
    for unit in new:
        model["vocab"][unit] = number
        number += 1
    grown = rebuilt(parts)
    if model["type"] == "WordLevel":
        return grown
    if model["type"] != "BPE" or model.get("continuing_subword_prefix"):
        raise TokensError(
            f"a vocabulary of kind {model['type']} cannot be extended; use train.start.tokens: keep"
        )
    merges = _more_merges(grown, texts, capacity - len(new), settings.min_count)
    for one, other in merges:
        model["merges"].append([one, other])
        model["vocab"][one + other] = number
        number += 1
    return rebuilt(parts)


def _new_units(tokens: Tokens, texts: list[str]) -> Counter[str]:
    """Characters of subword and character vocabularies, else words, that are not in the
    vocabulary: as the tokenizer normalises and cuts them.
    """
    known = set(tokens.names())
    counts: Counter[str] = Counter()
    for words in _words(tokens, texts):
        for word in words:
            counts.update([word] if tokens.level in ("word", "symbol", "label") else word)
    return Counter({unit: n for unit, n in counts.items() if unit not in known})


def _words(tokens: Tokens, texts: Iterable[str]) -> Iterable[list[str]]:
    """The words that the tokenizer cuts each text into, before its vocabulary is asked."""
    tokenizer = Tokenizer.from_str(tokens.to_json())
    for text in texts:
        text = tokens.normalized(text)
        if tokenizer.pre_tokenizer is None:
            yield [text]
        else:
            yield [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def _more_merges(
    tokens: Tokens, texts: list[str], capacity: int, min_count: int
) -> list[tuple[str, str]]:
    """Further merges of BPE: the most frequent pair of neighbours, again and again."""
    names = tokens.names()
    known = set(names)
    counts: Counter[str] = Counter(word for words in _words(tokens, texts) for word in words)
    tokenizer = Tokenizer.from_str(tokens.to_json())
    words: list[list[str]] = []
    often: list[int] = []
    for word, count in sorted(counts.items()):
        ids = [token.id for token in tokenizer.model.tokenize(word)]
        words.append([names[number] for number in ids])
        often.append(count)
    pairs: Counter[tuple[str, str]] = Counter()
    where: dict[tuple[str, str], set[int]] = {}
    for place in range(len(words)):
        _count(words[place], often[place], place, pairs, where)
    merges: list[tuple[str, str]] = []
    queue = [(-count, pair) for pair, count in pairs.items()]
    heapify(queue)
    while queue and len(merges) < capacity:
        count, best = heappop(queue)
        if pairs.get(best) != -count:
            continue  # it has changed, and is in the queue once more
        if -count < max(min_count, 2):
            break
        whole = "".join(best)
        if UNKNOWN_NAME in best or whole in known or len(whole) > LONGEST_SUBWORD:
            continue
        changed: set[tuple[str, str]] = set()
        for place in sorted(where[best]):
            changed |= _count(words[place], -often[place], place, pairs, where)
            words[place] = _joined(words[place], best)
            changed |= _count(words[place], often[place], place, pairs, where)
        for pair in changed & pairs.keys():
            heappush(queue, (-pairs[pair], pair))
        known.add(whole)
        merges.append(best)
    return merges


def _count(
    word: list[str],
    count: int,
    place: int,
    pairs: Counter[tuple[str, str]],
    where: dict[tuple[str, str], set[int]],
) -> set[tuple[str, str]]:
    """Add the pairs of one word, or with a negative count take them away; returns the pairs."""
    found = list(pairwise(word))
    for pair in found:
        pairs[pair] += count
        if count > 0:
            where.setdefault(pair, set()).add(place)
        elif pairs[pair] <= 0:
            del pairs[pair]
    return set(found)


def _joined(word: list[str], pair: tuple[str, str]) -> list[str]:
    found: list[str] = []
    place = 0
    while place < len(word):
        if tuple(word[place : place + 2]) == pair:
            found.append("".join(pair))
            place += 2
        else:
            found.append(word[place])
            place += 1
    return found


def _new_pieces(
    sides: Sequence[Tokens], settings: recipe.Tokens, texts: Iterable[str]
) -> list[tuple[str, float]]:
    """Pieces of a unigram vocabulary of these texts that none of `sides` has, and their scores."""
    known = {name.removeprefix(HIDDEN) for tokens in sides for name in tokens.names()}
    capacity = max(settings.size - len(sides[0]), 0)
    if not capacity:
        return []
    # Texts as they are before they are cut: whatever is normalized is so already.
    plain = {"algorithm": "unigram", "normalize": "none", "lowercase": False, "bpe_dropout": 0.0}
    normal = [sides[0].normalized(text).replace(SPACE, " ").strip() for text in texts]
    own = json.loads(Tokens.train(settings.model_copy(update=plain), normal).to_json())["model"]
    return [(name, score) for name, score in own["vocab"] if name not in known][:capacity]


def extended_pair(
    source: Tokens, target: Tokens, settings: recipe.Tokens, texts: Iterable[str]
) -> tuple[Tokens, Tokens]:
    """One vocabulary that cuts sources and targets each in its own way, extended: both get the
    same new tokens. Raises TokensError where it cannot be."""
    sides = [json.loads(tokens.to_json()) for tokens in (source, target)]
    templates = [parts.pop("post_processor") for parts in sides]
    if sides[0] == sides[1]:  # only the language differs that texts begin with
        grown = json.loads(extended(source, settings, texts).to_json())
        one, other = (rebuilt({**grown, "post_processor": template}) for template in templates)
        return one, other
    if any(parts["model"]["type"] != "Unigram" for parts in sides):
        raise TokensError(
            "the start model has one vocabulary, but cuts sources and targets by merges of their "
            "own, so that no new subwords can be learned; use train.start.tokens: keep"
        )
    pieces = _new_pieces([source, target], settings, texts)
    found = [
        with_pieces({**parts, "post_processor": template}, pieces)
        for parts, template in zip(sides, templates, strict=True)
    ]
    return found[0], found[1]


def old_pieces(old: Tokens, new: Tokens) -> Callable[[int], list[int]]:
    """A function that gives the tokens of an old vocabulary that a token of a new one is made of.

    Unknown ones are left out; a label has none. A new tag has all tags of the old vocabulary, as
    they stand where it will, or else the pieces of its name.
    """
    names, tags = new.names(), {number: tag for tag, number in new.tags.items()}
    added = new.added
    whole = "label" in (old.level, new.level)
    model = Tokenizer.from_str(old.to_json()).model

    def pieces(number: int) -> list[int]:
        if whole:
            return []
        if number in tags:
            return list(old.tags.values()) or _inner(old, " ".join(WORDS.findall(tags[number])))
        if number in added:
            found = _inner(old, names[number])
        elif old.level == new.level == "subword":  # as it stands: no space is put before it
            found = [piece.id for piece in model.tokenize(names[number])]
        else:
            found = old.encode(new.decode([number]))
        return [piece for piece in found if piece != UNKNOWN]

    return pieces


def _inner(tokens: Tokens, text: str) -> list[int]:
    """The tokens of a text, without what is put before it."""
    found = tokens.encode_batch([text], prefixed=False)[0]
    if len(found) > 1 and tokens.pieces(found[:1]) == [SPACE]:
        found = found[1:]
    return [number for number in found if number != UNKNOWN]


# ----------------------------------------------------------------------------------------------
# Tokens that a user names, and tags, added to a vocabulary: each is one token wherever it stands.
#
# A unigram vocabulary takes them among its pieces, with a score above that of any other way to
# cut a text. BPE that writes spaces as ▁ takes them as words, which are not merged: cut out after
# the space before a text is added, so that no other space comes or goes. Other vocabularies take
# them as added tokens, which are cut out before all else. Either way the file says it all, so
# that Hugging Face's tokenizers cut texts alike.

BEST = 100.0  # times the square of its length: the score of a piece that is never cut
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
AROUND = ("{}", "a {} b", "a{}b", "({}) {}.")  # where a token must be found, and come back


def add_tokens(tokens: Tokens, names: Sequence[str]) -> Tokens:
    """Tokens with these further ones, after all others but the tags of a unigram vocabulary.

    Raises TokensError where one cannot be added so that texts are cut and put together exactly.
    """
    if not names:
        return tokens
    if tokens.level != "subword":
        raise TokensError(
            f"train.start.add_tokens is for vocabularies of subwords, and this one has "
            f"{tokens.level}s; leave it out"
        )
    names = list(dict.fromkeys(_normal(tokens, name) for name in names))
    known = set(tokens.names())
    names = [name for name in names if name not in known]
    parts = json.loads(tokens.to_json())
    if parts["model"]["type"] == "Unigram":
        grown = with_pieces(parts, [(name, BEST * len(name) ** 2) for name in names])
    elif _prepends(parts):
        grown = _with_words(parts, tokens, names)
    else:
        _cut_out(parts, len(tokens), names)
        grown = rebuilt(parts)
    for name in names:
        _check(tokens, grown, name)
    return grown


def add_tags(tokens: Tokens, tags: Sequence[str]) -> Tokens:
    """Tokens with these further tags at the end."""
    tags = [tag for tag in tags if tag not in tokens.tags]
    if not tags:
        return tokens
    parts = json.loads(tokens.to_json())
    names = [f"<{tag}>" for tag in tags]
    if parts["model"]["type"] == "Unigram":
        place = len(tokens)
        parts["added_tokens"] += [_added(place + n, name, True) for n, name in enumerate(names)]
    else:
        _cut_out(parts, len(tokens), names, special=True)
    return rebuilt(parts)


def with_pieces(parts: dict[str, Any], pieces: Sequence[tuple[str, float]]) -> Tokens:
    """A unigram tokenizer's JSON with further pieces; the tags, which come last, move behind them.

    Changes `parts`.
    """
    listed = parts["model"]["vocab"]
    first = len(listed)
    listed += [[name, score] for name, score in pieces]
    for added in parts["added_tokens"]:
        if added["id"] >= first:
            added["id"] += len(pieces)
    return rebuilt(parts)


def _prepends(parts: dict[str, Any]) -> bool:
    """Whether a space is put before each part of a text that has an added token in it."""
    steps = (parts["normalizer"] or {}).get("normalizers", [])
    return parts["model"]["type"] == "BPE" and any(step["type"] == "Prepend" for step in steps)


def _with_words(parts: dict[str, Any], tokens: Tokens, names: Sequence[str]) -> Tokens:
    """A tokenizer of BPE whose texts are cut around these names, each a word of the vocabulary.

    Words that are in the vocabulary are then not merged from their letters: checked, as the same
    must come out.
    """
    model = Tokenizer.from_str(tokens.to_json()).model
    silent = {added["content"] for added in parts["added_tokens"]}
    for number, name in enumerate(tokens.names()):
        if name in silent or name.startswith(HIDDEN):
            continue
        if [one.id for one in model.tokenize(name)] != [number]:
            raise TokensError(
                f"train.start.add_tokens cannot be used with the vocabulary of the start model: "
                f"its merges do not lead to its subword {name!r}; leave it out"
            )
    first = len(tokens)
    vocabulary = parts["model"]["vocab"]
    vocabulary |= {added["content"]: added["id"] for added in parts["added_tokens"]}
    vocabulary |= {name: first + place for place, name in enumerate(names)}
    parts["model"]["ignore_merges"] = True
    step = parts["pre_tokenizer"]
    steps = step["pretokenizers"] if step and step["type"] == "Sequence" else [step] if step else []
    cuts = [
        {"type": "Split", "pattern": {"String": name}, "behavior": "Isolated", "invert": False}
        for name in names
    ]
    parts["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*cuts, *steps]}
    return rebuilt(parts)


def _cut_out(
    parts: dict[str, Any], first: int, names: Sequence[str], *, special: bool = False
) -> None:
    """Add tokens that are cut out of a text. All have a place in the vocabulary proper, as their
    ids would otherwise be counted anew when the file is read."""
    vocabulary = parts["model"]["vocab"]
    vocabulary |= {added["content"]: added["id"] for added in parts["added_tokens"]}
    vocabulary |= {name: first + place for place, name in enumerate(names)}
    parts["added_tokens"] += [
        _added(first + place, name, special) for place, name in enumerate(names)
    ]
    if not special:
        _prepend_once(parts["pre_tokenizer"])


def _added(number: int, name: str, special: bool) -> dict[str, Any]:
    return {"id": number, "content": name, **FLAGS, "special": special}


def _prepend_once(step: dict[str, Any] | None) -> None:
    """The space that is put before a text is not put before what follows an added token."""
    for one in (step or {}).get("pretokenizers", [step] if step else []):
        if one["type"] == "Metaspace" and one.get("prepend_scheme") == "always":
            one["prepend_scheme"] = "first"


def _normal(tokens: Tokens, name: str) -> str:
    """A token as the vocabulary writes it: where it is one of its pieces, after normalization."""
    if not name.strip() or any(sign.isspace() or sign == SPACE for sign in name):
        raise TokensError(
            f"train.start.add_tokens has {name!r}; a token is a text without spaces: take them out"
        )
    if name in SPECIALS:
        raise TokensError(f"train.start.add_tokens has {name}, which every vocabulary has; omit it")
    parts = json.loads(tokens.to_json())
    if '"ByteLevel"' in json.dumps(parts["pre_tokenizer"]):
        odd = [sign for sign in name if not sign.isascii() and sign in byte_letters()]
        if odd:
            raise TokensError(
                f"train.start.add_tokens has {name!r}, but the vocabulary of the start model is of "
                f"bytes and writes one of them as {odd[0]}; leave it out"
            )
    if parts["model"]["type"] != "Unigram" and not _prepends(parts):
        return name
    return tokens.normalized(f"x{name}").partition("x")[2]


def _check(old: Tokens, new: Tokens, name: str) -> None:
    """Raise TokensError unless the token is found wherever it stands, and texts come back."""
    number = new.names().index(name)
    for around in AROUND:
        text = around.format(*[name] * around.count("{}"))
        ids = new.encode(text)
        if ids.count(number) != around.count("{}"):
            raise TokensError(
                f"train.start.add_tokens has {name!r}, which the tokenizer of the start model cuts "
                f"apart in {text!r}; name another token, or leave it out"
            )
        plain = around.format(*["b"] * around.count("{}"))
        kept = old.decode(old.encode(plain)).strip() == plain
        back = new.decode(ids)
        if back.count(name) != around.count("{}") or (kept and back.strip() != text):
            raise TokensError(
                f"train.start.add_tokens has {name!r}, but with the tokenizer of the start model "
                f"{text!r} would come back as {back!r}; leave it out"
            )


def rebuilt(parts: dict[str, Any]) -> Tokens:
    """The tokens of a JSON whose added tokens may have other ids than before."""
    template = parts.get("post_processor") or {}
    numbers = {added["content"]: added["id"] for added in parts["added_tokens"]}
    for one in template.get("special_tokens", {}).values():
        one["ids"] = [numbers[name] for name in one["tokens"]]
    return Tokens(Tokenizer.from_str(json.dumps(parts)))
