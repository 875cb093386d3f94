"""Tokenizers of others: texts are cut, and put together again, as they do it themselves."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from hf_models import TEXTS, learn_sentencepiece
from transduce.data.tokens.sentencepiece import Charsmap, as_tokenizer, read_sentencepiece
from transduce.data.tokens.sides import train_tokens
from transduce.data.tokens.tokenizer import UNKNOWN, Tokens
from transduce.errors import TokensError
from transduce.recipe import Data

sentencepiece = pytest.importorskip("sentencepiece")

ODD = [
    "  two  spaces \t tab\u00a0nbsp\u3000ideographic ",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈",
    "e\u0301a\u0308 ﬁ ½ ① Y\u0301 İ",
    "مُحَمَّدٌ يجري على العشب",
    "中文 全角ＡＢＣ ｶﾞ 각",
    "\u200bzero\u200dwidth\ufeff",
    "",
    "   ",
    "a\nb\r\nc",
    "a \n b\n ",
]


def lines() -> list[str]:
    """Real text where there is some, else a few sentences."""
    folder = Path(os.environ.get("TRANSDUCE_MULTI30K", "data/multi30k"))
    files = [folder / name for name in ("val.en.gz", "val.de.gz")]
    if not all(file.is_file() for file in files):
        return TEXTS * 5
    return [line for file in files for line in gzip.open(file, "rt").read().splitlines()[:200]]


@pytest.mark.parametrize("rules", ["nmt_nfkc", "nmt_nfkc_cf", "identity"])
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentencepiece_models_cut_texts_as_sentencepiece(
    tmp_path: Path, kind: str, rules: str
) -> None:
    path = tmp_path / "spm.model"
    learn_sentencepiece(path, kind, 200, [*lines(), "the y̆ and ÝÝ"], rules=rules)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    ours = Tokens.load(path, foreign=True)
    names = ours.names()
    assert len(ours) == len(theirs) + 1  # PAD; both have three other special tokens
    known = 0
    for text in [*lines(), *ODD]:
        ids, numbers = ours.encode(text), theirs.encode(text)
        expected = [None if n == theirs.unk_id() else theirs.id_to_piece(n) for n in numbers]
        assert [None if n == UNKNOWN else names[n] for n in ids] == expected
        if None not in expected:
            known += 1
            assert ours.decode(ids) == theirs.decode(numbers)
    assert known > 10


def test_the_file_of_a_vocabulary_keeps_how_it_cuts(tmp_path: Path) -> None:
    path = tmp_path / "spm.model"
    learn_sentencepiece(path, "unigram", 120, [*TEXTS, "ÝÝ ýý"], rules="nmt_nfkc_cf")
    tokens = Tokens.load(path, foreign=True)
    tokens.save(tmp_path / "ours.json")
    again = Tokens.load(tmp_path / "ours.json")
    for text in ["Y\u0301Y\u0301 Dog", *ODD]:
        assert again.encode(text) == tokens.encode(text)


def test_the_longest_rule_is_applied(tmp_path: Path) -> None:
    """Y becomes y, but Y with an accent ý: the shortest rule that fits would leave the accent."""
    table = tmp_path / "rules.tsv"
    table.write_text("0059\t0079\n0059 0301\t00FD\n")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 3),
        model_prefix=str(tmp_path / "spm"),
        vocab_size=100,
        normalization_rule_tsv=str(table),
        hard_vocab_limit=False,
        minloglevel=2,
    )
    rules = Charsmap(read_sentencepiece(tmp_path / "spm.model").charsmap)
    assert rules.normalize("aY\u0301Yb") == "aýyb"


def test_a_tokenizer_of_hugging_face_is_used_as_it_is(tmp_path: Path) -> None:
    from tokenizers import ByteLevelBPETokenizer

    learned = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    learned.train_from_iterator(TEXTS, vocab_size=330, special_tokens=special)
    path = tmp_path / "tokenizer.json"
    path.write_text(learned._tokenizer.to_str())
    theirs, ours = Tokenizer.from_file(str(path)), Tokens.load(path, foreign=True)
    names = ours.names()
    assert len(ours) == theirs.get_vocab_size()
    for text in [*TEXTS, *ODD]:
        ids = ours.encode(text)
        assert [names[n] for n in ids] == theirs.encode(text, add_special_tokens=False).tokens
        assert ours.decode(ids) == text
    assert "mask" in ours.tags


def test_a_recipe_names_the_file_of_another_tokenizer(tmp_path: Path) -> None:
    learn_sentencepiece(tmp_path / "spm.model", "unigram", 100)
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("\n".join(TEXTS))
    values = {
        "folder": str(tmp_path),
        "train": {"source": "a.en", "target": "a.de"},
        "valid": {"source": "a.en", "target": "a.de"},
        "tokens": {"both": {"file": "spm.model"}},
    }
    source, target = train_tokens(Data.model_validate(values))
    assert source is target
    assert source.decode(source.encode(TEXTS[0])) == TEXTS[0]


def test_files_that_cannot_be_used_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "spm.model"
    learn_sentencepiece(path, "word", 60)
    with pytest.raises(TokensError, match="cuts texts by word"):
        Tokens.load(path, foreign=True)
    learn_sentencepiece(path, "unigram", 100)
    whole = path.read_bytes()
    for damaged in (b"", b"hello", whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(TokensError, match="is not a SentencePiece model, or is damaged"):
            Tokens.load(path, foreign=True)


def test_names_of_other_tokens_are_not_found_in_texts(tmp_path: Path) -> None:
    """As Marian's: one vocabulary, of which the pieces of the other side are not used."""
    path = tmp_path / "spm.model"
    learn_sentencepiece(path, "unigram", 100)
    model = read_sentencepiece(path)
    names = ["grass.", *model.pieces, "ж"]
    tokens = Tokens.from_json(as_tokenizer(model, names, ["deu"]))
    plain = Tokens.from_json(as_tokenizer(model))
    shifted = [number + 1 for number in plain.encode(TEXTS[0])]
    assert tokens.encode(TEXTS[0]) == shifted
    assert tokens.encode("<deu> ж")[0] == tokens.tags["deu"]
    assert tokens.decode(tokens.encode("ж")) == "ж"
    assert tokens.decode([4]) == "grass."
    assert json.loads(tokens.to_json())["model"]["vocab"][4][0].endswith("grass.")
