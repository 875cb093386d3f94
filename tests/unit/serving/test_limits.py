"""Texts that are short enough for a model, without tokenization."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transduce import recipe
from transduce.data.tokens.tokenizer import Tokens
from transduce.serving.protocols.translation import is_short

LEARNT = ["A dog runs <s> over the street.", "one two", "#!/ \t\n"] * 3
KINDS: dict[str, dict[str, object]] = {
    "character": {},
    "byte": {},
    "word": {},
    "symbol": {},
    "bpe": {"level": "subword", "algorithm": "bpe", "size": 60},
    "unigram": {"level": "subword", "algorithm": "unigram", "size": 60},
}
PARTS = st.text(st.characters(max_codepoint=127)) | st.sampled_from(["<s>", "<pad>", "<", " "])
TOKENS = {
    name: Tokens.train(recipe.Tokens.model_validate({"level": name, **keys}), LEARNT)
    for name, keys in KINDS.items()
}


@pytest.mark.parametrize("kind", KINDS)
@given(parts=st.lists(PARTS))
@example(parts=["<s>", "<pad>"])
def test_a_text_taken_for_short_has_no_more_tokens(kind: str, parts: list[str]) -> None:
    tokens, text = TOKENS[kind], "".join(parts)
    count = len(tokens.encode(text))
    assert not is_short(tokens, text, count - 1)


def test_a_short_text_need_not_be_tokenized() -> None:
    assert is_short(TOKENS["bpe"], "A dog runs.", 20)
    assert not is_short(TOKENS["byte"], "é" * 10, 15)
