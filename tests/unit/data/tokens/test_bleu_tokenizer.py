"""BLEU's tokenizer: chosen by the language of targets, had or not, fit or not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import sacrebleu

from transduce.data.tokens.bleu_tokenizer import bleu_tokenizer, make_bleu, unfit
from transduce.decoding.combine.rerank import expected_utility
from transduce.errors import RecipeError
from transduce.evaluation.metrics import measure
from transduce.recipe import Recipe, parse_recipe

CHINESE = ["今天天气很好，我们去公园散步。", "他昨天买了一本新书。", "这个问题很难回答。"]
WRITTEN = ["今天天气很好，我们去公园玩。", "他昨天买了一本书。", "这个问题很难回答。"]


def read(corpus: str, *overrides: str) -> Recipe:
    text = f"data:\n  train: {corpus}\n  valid: {{source: a, target: b}}\n"
    return parse_recipe(text, "my.yaml", Path("/"), overrides)


@pytest.mark.parametrize(
    ("corpus", "tokenizer"),
    [
        ("{source: train.en, target: train.zh}", "zh"),
        ("{source: train.en, target: train.zh_CN.gz}", "zh"),
        ("{source: train.zh, target: train.en}", "13a"),
        ("{source: a.en, target: [a.ja, b.ja]}", "ja-mecab"),
        ("{source: a.txt, target: b.txt}", "13a"),
        ("{name: multi30k, split: train, pair: en-de}", "13a"),
        ("{name: udhr, split: train, pair: eng-kor}", "ko-mecab"),
        ("{name: sigmorphon2020, split: train, language: jpn}", "13a"),
        ("{file: a.jsonl, source: en, target: zh}", "zh"),
        ("{file: a.tsv}", "13a"),
        ("{hub: wmt19, split: train, source: translation.en, target: translation.zh}", "zh"),
        ("[{source: a.en, target: a.zh}, {source: b.en, target: b.zh}]", "zh"),
        ("[{source: a.en, target: a.zh}, {source: b.en, target: b.de}]", "13a"),
    ],
)
def test_the_language_of_targets_decides(corpus: str, tokenizer: str) -> None:
    assert bleu_tokenizer(read(corpus)) == tokenizer
    assert bleu_tokenizer(read(corpus, "bleu_tokenizer=char")) == "char"


def test_a_tokenizer_that_there_is_not_is_reported() -> None:
    with pytest.raises(RecipeError, match="bleu_tokenizer is zg; it must be auto, 13a, zh"):
        read("{file: a.tsv}", "bleu_tokenizer=zg")
    with pytest.raises(RecipeError, match="bleu_tokenizer is zh, but a classifier"):
        read("{file: a.tsv}", "data.valid={file: a.tsv}", "task=classify", "bleu_tokenizer=zh")


@pytest.mark.parametrize("tokenizer", ["13a", "zh", "char", "intl", "none"])
def test_bleu_is_that_of_sacrebleu_and_its_signature_says_which(tokenizer: str) -> None:
    references = [[text] for text in CHINESE]
    found = measure(["bleu"], WRITTEN, references, bootstrap=0, bleu_tokenizer=tokenizer)["bleu"]
    right = sacrebleu.corpus_bleu(WRITTEN, [CHINESE], tokenize=tokenizer)
    assert found.value == pytest.approx(right.score)
    assert f"|tok:{tokenizer}|" in found.details["signature"]
    assert (found.value > 50) == (tokenizer in ("zh", "char"))


def test_expected_utility_knows_words_without_spaces() -> None:
    drawn = [CHINESE[0], WRITTEN[0], CHINESE[2]]  # two alike, and one of its own
    one, other, alone = expected_utility(drawn, "bleu", "zh")
    assert min(one, other) > alone + 10
    assert len(set(expected_utility(drawn, "bleu", "13a"))) == 1


@pytest.mark.parametrize(
    ("tokenizer", "package", "extra"),
    [
        ("ja-mecab", "MeCab", r"\.\[ja\]"),
        ("ko-mecab", "mecab_ko", r"\.\[ko\]"),
        ("flores200", "sentencepiece", r"\.\[flores\].*its model from the internet"),
    ],
)
def test_a_missing_package_is_reported_with_its_extra(
    tokenizer: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("sacrebleu.tokenizers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        RecipeError, match=rf"{tokenizer} is not available here .*{extra}"
    ) as reported:
        make_bleu(tokenizer)
    assert "\n" not in str(reported.value)


@pytest.mark.parametrize(
    ("texts", "advice"),
    [
        (CHINESE, "bleu_tokenizer: zh"),
        (["東京は日本の首都です。", "私は本を読みます。"], "bleu_tokenizer: ja-mecab"),
        (["서울은 대한민국의 수도이다."], "bleu_tokenizer: ko-mecab"),
        (["กรุงเทพเป็นเมืองหลวงของประเทศไทย"], "bleu_tokenizer: char"),
        (["Ein Hund läuft.", "В лесу", "中文 in einem langen deutschen Satz"], ""),
        (["123", "..."], ""),
        ([], ""),
    ],
)
def test_references_that_13a_does_not_cut_are_reported(texts: list[str], advice: str) -> None:
    said = unfit("13a", texts)
    assert said.endswith(advice)
    assert bool(said) == bool(advice)
    assert unfit("zh", texts) == unfit("char", texts) == ""
