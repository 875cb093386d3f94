"""Tokenizers in JavaScript: the same ids and texts as in Python."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from hf_models import learn_sentencepiece
from node import MISSING, NODE, run_module
from transduce import recipe
from transduce.data.tokens.tokenizer import Tokens

pytestmark = pytest.mark.skipif(NODE is None, reason=MISSING)

TEXTS = [
    "A dog runs through the snow.",
    "Zwei Männer stehen am Herd und bereiten Essen zu.",
    "Ein Mädchen läuft; „schnell“ — sagt sie: 3,5 km/h!",
    "Η ΟΔΟΣ ΤΟΥ ΦΩΣ και ΣΟΦΟΣ",
    "日本語のテキスト と 한국어 और हिन्दी",
    "cafe\u0301 naïve ﬁne ½ Å",
    "tabs\tand\nlines  and   spaces ",
    " leading, and trailing\u00a0",
    "emoji 👩‍👩‍👧 🇩🇪 and <s> </s> <unk> <pad>",
    "$1.50 + 2^3 = ~9.5 `code` |x| <b>",
]
SETTINGS = [
    {"level": "character"},
    {"level": "character", "lowercase": True, "normalize": "nfd"},
    {"level": "byte"},
    {"level": "word", "lowercase": True},
    {"level": "symbol", "normalize": "nfkc"},
    {"level": "subword", "size": 400},
    {"level": "subword", "size": 400, "punctuation": "apart", "normalize": "nfc"},
    {"level": "subword", "size": 400, "algorithm": "unigram"},
    {
        "level": "subword",
        "size": 400,
        "algorithm": "unigram",
        "normalize": "nfkd",
        "lowercase": True,
    },
]
TAGS = ["V;PST", "fre", "N(PL)"]
RUN = """
import { Tokens } from "RUNTIME/tokens.js";
answer(given.tokens.map(({ file, form }) => {
  const tokens = new Tokens(file, form);
  return given.texts.map((text) => {
    const ids = tokens.encode(text);
    return [ids, tokens.decode(ids)];
  });
}));
"""


def odd_texts(count: int, seed: int = 1) -> list[str]:
    """Texts of letters of all kinds, in any order."""
    draw = random.Random(seed)
    letters = sorted(set("".join(TEXTS))) + list(
        "\u0301\u0308\u200b\ufeff\u3000ßẞİıŉǅ①㎏ﷺ\u1e9b\u0323"
    )
    made = []
    for _ in range(count):
        words = [draw.choice(" ".join(TEXTS).split(" ")) for _ in range(draw.randint(0, 5))]
        noise = "".join(draw.choices(letters, k=draw.randint(0, 12)))
        made.append(draw.choice((" ", "")).join([*words, noise]))
    return made


def compare(made: list[Tokens], texts: list[str], folder: Path) -> None:
    given = [{"file": json.loads(one.to_json()), "form": one.form} for one in made]
    found = run_module(folder, RUN, {"tokens": given, "texts": texts})
    for tokens, answers in zip(made, found, strict=True):
        for text, (ids, decoded) in zip(texts, answers, strict=True):
            expected = tokens.encode(text)
            assert ids == expected, (tokens.level, text)
            assert decoded == tokens.decode(expected), (tokens.level, text)


def trained() -> list[Tokens]:
    made = [Tokens.train(recipe.Tokens(**one), TEXTS * 3, TAGS) for one in SETTINGS]
    return [*made, Tokens.train(recipe.Tokens(**SETTINGS[5]), TEXTS * 3)]


def test_ids_and_texts_are_those_of_python(tmp_path: Path) -> None:
    tagged = ["<fre> bonjour", "<V;PST> <fre>go", "<N(PL)>x", "<ger> y", "<V;fre> z", "<fre", ""]
    rows = [letter * count for letter in "estn lo." for count in (3, 5, 7)]  # cut in several ways
    compare(trained(), [*TEXTS, *tagged, *rows, *odd_texts(200)], tmp_path)


def test_tags_and_their_parts_are_those_of_python(tmp_path: Path) -> None:
    level = recipe.Tokens(level="character")
    known = [
        Tokens.train(level, TEXTS, tags) for tags in (["IN", "ESS", "C++"], ["IN", "ESS", "?"])
    ]
    brackets = (
        *("IN+ESS", "ESS+IN;IN", "IN+XX", "XX+YY", "XX", "XX;IN", "IN+ESS;XX|ESS", "C++", "?"),
        *("IN+", "+IN", "IN++ESS", "IN+(ESS)", "(IN;ESS)+IN", "(IN;ESS", ";", "+"),
    )
    texts = [f"<{one}> {two}lo" for one in brackets for two in ("", "<IN>", "<XX> ")]
    compare(known, texts, tmp_path)


def byte_level() -> list[Tokens]:
    """As of GPT-2 and Llama 3."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    from transduce.data.tokens.learn import SPECIALS, WORD_PATTERNS

    made = []
    for split in (None, *WORD_PATTERNS):
        tokenizer = Tokenizer(models.BPE(byte_fallback=False))
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
        tokenizer.pre_tokenizer = to_bytes
        if split is not None:
            cut = pre_tokenizers.Split(Regex(split), "isolated")
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, to_bytes])
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=500,
            special_tokens=list(SPECIALS),
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
        tokenizer.train_from_iterator(TEXTS * 3, trainer)
        made.append(Tokens(tokenizer))
    return made


def sentencepiece_models(folder: Path) -> list[Tokens]:
    """Of both algorithms, with its rules of normalization."""
    pytest.importorskip("sentencepiece")
    made = []
    for kind, rules in (("unigram", "nmt_nfkc"), ("bpe", "nmt_nfkc_cf"), ("unigram", "identity")):
        path = folder / f"{kind}-{rules}.model"
        learn_sentencepiece(path, kind, 200, TEXTS * 3, rules=rules)
        made.append(Tokens.load(path, foreign=True))
    return made


def test_byte_level_tokenizers_of_others(tmp_path: Path) -> None:
    compare(byte_level(), [*TEXTS, *odd_texts(100)], tmp_path)


def test_cuts_that_are_equally_probable(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models

    from transduce.data.tokens.learn import SPECIALS

    pieces = [*((one, 0.0) for one in SPECIALS), ("a", -1.0), ("aa", -2.0), ("aaa", -3.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=1))
    tokenizer.decoder = decoders.Fuse()
    compare([Tokens(tokenizer)], ["a" * count for count in range(1, 8)], tmp_path)


def test_sentencepiece_models(tmp_path: Path) -> None:
    made = sentencepiece_models(tmp_path)
    older = made[-1].to_json().replace(r"\\A +", "^ +").replace(r" +\\z", " +$")
    (tmp_path / "older.json").write_text(older, "utf-8")
    made.append(Tokens.load(tmp_path / "older.json"))
    texts = [*TEXTS, *odd_texts(200), "  two \n lines\n "]
    assert made[-1].encode(texts[-1]) != made[-2].encode(texts[-1])  # stripped at ends of lines
    compare(made, texts, tmp_path)


@pytest.mark.slow
def test_ten_thousand_texts(tmp_path: Path) -> None:
    made = [*trained(), *byte_level(), *sentencepiece_models(tmp_path)]
    compare(made, odd_texts(10_000, seed=2), tmp_path)
