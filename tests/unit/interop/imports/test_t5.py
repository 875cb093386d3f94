"""T5, mT5 and ByT5 of transformers with random weights: the same ids, probabilities and outputs."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import optional
import transduce
from hf_models import TEXTS, learn_sentencepiece, pieces_of
from slow_params import some_slow
from transduce.data.tokens.tokenizer import BEGIN, END
from transduce.errors import ModelError
from transduce.interop.ctranslate2 import check
from transduce.interop.huggingface.measure import EndAt
from transduce.interop.imports import t5
from transduce.interop.imports.configuration import Configuration, read_configuration
from transduce.interop.imports.registry import import_model
from transduce.tasks.transduce import Transducer

transformers = optional.package("transformers")
optional.skip_without("sentencepiece")

SIZES: dict[str, Any] = {
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.0,
}
# The first T5; T5 1.1, whose heads are wider than width / heads; mT5, whose are narrower; ByT5.
MODELS: dict[str, dict[str, Any]] = {
    "t5": {},
    "t5-1.1": {"feed_forward_proj": "gated-gelu", "d_kv": 12, "tie_word_embeddings": False},
    "mt5": {"feed_forward_proj": "gated-gelu", "d_kv": 6, "tie_word_embeddings": False},
    "byt5": {"feed_forward_proj": "gated-gelu", "d_kv": 6, "tie_word_embeddings": False},
}


SPREAD = 0.2


def this_module() -> Any:
    return sys.modules[__name__]


def written(name: str, folder: Path) -> None:
    """A folder as those that are downloaded."""
    folder.mkdir()
    if name == "byt5":
        tokenizer = transformers.ByT5Tokenizer()
        size = len(tokenizer)
    else:
        learn_sentencepiece(folder / "learned.model", "unigram", 110)
        pieces = pieces_of(folder / "learned.model")
        (folder / "learned.model").unlink()
        listed = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces]
        tokenizer = transformers.T5Tokenizer(vocab=listed, extra_ids=7)
        size = len(tokenizer) + 5  # as the real one, which has more rows than tokens
    kind = transformers.MT5Config if name == "mt5" else transformers.T5Config
    model = transformers.MT5ForConditionalGeneration if name == "mt5" else None
    model = model or transformers.T5ForConditionalGeneration
    network = model(kind(**SIZES | MODELS[name], vocab_size=size)).eval()
    torch.manual_seed(5)
    if "tie_word_embeddings" in MODELS[name]:
        network.lm_head.weight = torch.nn.Parameter(torch.empty(size, 16))
    with torch.no_grad():
        for key, parameter in network.named_parameters():
            parameter.normal_(std=SPREAD)
            parameter.add_("norm" in key)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if "tie_word_embeddings" in MODELS[name]:  # as it stands in the files on the hub
        config = json.loads((folder / "config.json").read_text())
        config |= {"tie_word_embeddings": False}
        config.pop("scale_decoder_outputs", None)
        (folder / "config.json").write_text(json.dumps(config))


class Both:
    """A model there, and imported."""

    def __init__(self, name: str, folder: Path) -> None:
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        written(name, folder / "there")
        import_model(folder / "there", folder / "ours")
        model = transduce.load(folder / "ours")
        assert isinstance(model, Transducer)
        self.name, self.model = name, model
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "there")
        self.network = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder / "there").eval()
        config = read_configuration(folder / "there" / "config.json")
        self.ids = t5._tokens(folder / "there", config, Configuration({}, "none"))[1]


@pytest.fixture(scope="module", params=some_slow(MODELS, ["t5", "t5-1.1", "byt5"]))
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(request.param, tmp_path_factory.mktemp(request.param))


def test_texts_have_the_same_ids(both: Both) -> None:
    for text in [*TEXTS, "odd   spaces ", "naïve 🙂 café"]:
        ours = both.ids.theirs([*both.model.source_tokens.encode(text), END])
        assert ours == both.tokenizer(text).input_ids


@torch.inference_mode()
def test_log_probabilities_are_the_same(both: Both) -> None:
    largest = 0.0
    for source, target in zip(TEXTS, reversed(TEXTS), strict=True):
        read = both.ids.theirs([*both.model.source_tokens.encode(source), END])
        target_ids = both.ids.theirs([*both.model.target_tokens.encode(target), END])
        logits_TV = both.network(
            input_ids=torch.tensor([read]),
            decoder_input_ids=torch.tensor([[0, *target_ids[:-1]]]),
        ).logits[0]
        theirs = logits_TV.log_softmax(dim=-1)[torch.arange(len(target_ids)), target_ids]
        (ours,) = both.model.score([source], [target])
        assert theirs.tolist() == pytest.approx(ours.token_log_probabilities, abs=1e-4)
        largest = max(largest, float(theirs.max() - theirs.min()))
    assert largest > 0.1  # they do differ, whatever the vocabulary that was learned


@pytest.mark.parametrize("beam", [1, 3])
def test_outputs_are_the_same(both: Both, beam: int) -> None:
    """Beams without a length penalty, which is another one there, each ended at one length. The
    vocabulary that is learned differs between machines, and with it the random weights: so outputs
    that would end at once are not allowed to.
    """
    shortest, longest = 3, 8
    inputs = both.tokenizer(TEXTS[:2], return_tensors="pt", padding=True)
    rows = both.network.generate(
        **inputs,
        do_sample=False,
        num_beams=beam,
        length_penalty=0.0,
        min_new_tokens=shortest,
        max_length=longest + 2,
        suppress_tokens=[0],
        use_cache=False,  # it takes the encoder's layers for the decoder's
        logits_processor=transformers.LogitsProcessorList([EndAt([longest + 1] * 2, beam, 1)]),
    )
    found = both.model.run(
        TEXTS[:2], beam=beam, length_penalty=0.0, min_length=shortest, max_length=longest
    )
    for row, output in zip(rows.tolist(), found, strict=True):
        expected = row[1 : row.index(1)]
        assert both.ids.theirs(output.ids) == expected
        assert len(expected) >= shortest


def test_what_differs_is_rounding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With weights that make log-probabilities differ by 1e-4 in float32, both are the same in
    float64. Norms and softmax there are in float32 always: here they are not; and the root of d_kv,
    by which queries are scaled here, is a power of two, as in the real models.
    """
    from transformers.models.t5 import modeling_t5

    monkeypatch.setitem(MODELS["t5-1.1"], "d_kv", 16)
    monkeypatch.setattr(this_module(), "SPREAD", 0.4)
    both = Both("t5-1.1", tmp_path)
    read, written = ([*both.model.source_tokens.encode(text), END] for text in TEXTS[:2])

    @torch.inference_mode()
    def differ(exact: torch.dtype) -> float:
        theirs, ours = both.network.to(exact), both.model.network.to(exact)
        ids = both.ids.theirs(written)
        logits_TV = theirs(
            input_ids=torch.tensor([both.ids.theirs(read)]),
            decoder_input_ids=torch.tensor([[0, *ids[:-1]]]),
        ).logits[0]
        expected_T = logits_TV.log_softmax(-1)[torch.arange(len(ids)), ids]
        features_1TD = ours(
            torch.tensor([read]), torch.tensor([len(read)]), torch.tensor([[BEGIN, *written[:-1]]])
        )
        found_T = ours.head(features_1TD)[0].log_softmax(-1)[torch.arange(len(ids)), written]
        return float((found_T - expected_T).abs().max())

    assert differ(torch.float32) > 1e-6

    def norm(self: Any, states: torch.Tensor) -> torch.Tensor:
        mean = states.square().mean(-1, keepdim=True)
        return self.weight * states * (mean + self.variance_epsilon).rsqrt()  # type: ignore[no-any-return]

    monkeypatch.setattr(modeling_t5.T5LayerNorm, "forward", norm)
    monkeypatch.setattr(torch.Tensor, "float", lambda self: self)
    assert differ(torch.float64) < 1e-11


def test_a_batch_says_what_single_sources_say(both: Both) -> None:
    texts = TEXTS[1:4]
    together = [output.text for output in both.model.run(texts, beam=2, max_length=9)]
    alone = [both.model.run([text], beam=2, max_length=9)[0].text for text in texts]
    assert together == alone


def test_it_can_be_looked_into_and_trained(both: Both) -> None:
    """A lens sees the attention; gradients reach the bias of distances."""
    with both.model.lens("encoder.*") as seen:
        both.model.run(TEXTS[:1], beam=1, max_length=5)
    assert seen
    network = both.model.network
    source_BS = torch.tensor([[5, 6, 7, END]])
    network.train()
    network.loss(source_BS, torch.tensor([4]), torch.tensor([[2, 8, 9, END]])).total.backward()
    network.eval()
    bias = network.encoder.stack[0].self_attention.relative  # type: ignore[union-attr]
    assert bias is not None
    assert bool(bias.table_RH.grad.any())
    network.zero_grad()


def test_exports_refuse_it(both: Both) -> None:
    with pytest.raises(ModelError, match=r"relative positions|head_width"):
        check(both.model.recipe.model)


@pytest.fixture(scope="module")
def byt5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("byt5") / "there"
    written("byt5", folder)
    return folder


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"feed_forward_proj": "gated-tanh"}, "feed_forward_proj is 'gated-tanh'"),
        ({"num_layers": 1}, "no place for"),
        ({"num_layers": 3}, "encoder.block.2.*needs"),
        ({"d_ff": 23}, "and not"),
        ({"num_heads": "two"}, "num_heads"),
        ({"relative_attention_max_distance": 2}, "do not fit together"),
    ],
)
def test_what_does_not_fit(byt5: Path, tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    shutil.copytree(byt5, tmp_path / "there")
    path = tmp_path / "there" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match=reason):
        t5.read(tmp_path / "there")
