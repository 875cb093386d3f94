"""Our models in transformers itself: the same ids, log-probabilities and outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import optional
from tiny_models import SOURCES, TARGETS, WORDS, tiny
from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, END, Tokens
from transduce.errors import ModelError
from transduce.interop import export as exports
from transduce.interop.huggingface.export import export
from transduce.interop.huggingface.measure import EndAt, measure
from transduce.interop.parity import Measurement, Parity, measure_here
from transduce.recipe import Recipe
from transduce.tasks.language_model import LanguageModel
from transduce.tasks.transduce import Transducer, load

transformers = optional.package("transformers")

LEARNED = {"positions": "learned", "max_positions": 300}
BART = {**LEARNED, "norm_embeddings": True, "norm_position": "post", "scale_embeddings": False}
CLASSES = [
    ("MarianMTModel", {"norm_position": "post"}, "all"),
    ("MarianMTModel", {"norm_position": "post", "activation": "silu"}, "target"),
    ("PegasusForConditionalGeneration", {}, "all"),
    ("PegasusForConditionalGeneration", {"activation": "gelu"}, "target"),
    ("BlenderbotForConditionalGeneration", LEARNED, "target"),
    ("BartForConditionalGeneration", BART, "all"),
    ("MBartForConditionalGeneration", {**LEARNED, "norm_embeddings": True}, "target"),
]
TEXTS = [text for text in SOURCES if text]
LONGEST = 12


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def loaded(model: Transducer, folder: Path) -> tuple[Any, Any, str]:
    name = export(model, folder)
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    return transformers.AutoTokenizer.from_pretrained(folder), network, name


@torch.inference_mode()
def scores(network: Any, tokenizer: Any, source: str, targets: list[int]) -> Tensor:
    start = network.config.decoder_start_token_id
    inputs = tokenizer([source], return_tensors="pt")
    given = torch.tensor([[start, *targets[:-1]]])
    log_probs_TV = network(**inputs, decoder_input_ids=given).logits[0].log_softmax(dim=-1)
    return log_probs_TV[torch.arange(len(targets)), targets]


@pytest.mark.parametrize(("name", "options", "tied"), CLASSES)
def test_transformers_computes_the_same(
    tmp_path: Path, name: str, options: dict[str, Any], tied: str
) -> None:
    model = tiny(options, options, tie_embeddings=tied, seed=5)
    model.network.head.bias.data[END] += 0.5
    tokenizer, network, found = loaded(model, tmp_path)
    assert found == name == type(network).__name__
    first = 0 if tied == "all" else len(model.source_tokens)
    for source, target in zip(SOURCES, TARGETS, strict=True):
        ids = [first + number for number in [*model.target_tokens.encode(target), END]]
        (ours,) = model.score([source], [target])
        theirs = scores(network, tokenizer, source, ids)
        assert theirs.tolist() == pytest.approx(ours.token_log_probabilities, abs=1e-5)
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True)
    for beam in (1, 3):
        # Without a length penalty: theirs is another one.
        ending = EndAt([LONGEST + 1] * len(TEXTS), beam, first + END)
        written = network.generate(
            **inputs,
            num_beams=beam,
            length_penalty=0.0,
            max_length=LONGEST + 2,
            logits_processor=transformers.LogitsProcessorList([ending]),
        )
        searched = model.run(TEXTS, beam=beam, length_penalty=0.0, max_length=LONGEST)
        ours_texts = [output.text for output in searched]
        assert any(ours_texts)
        assert tokenizer.batch_decode(written, skip_special_tokens=True) == ours_texts


@pytest.mark.parametrize(
    "level",
    [
        {"level": "subword", "size": 40},
        {"level": "subword", "algorithm": "unigram", "size": 40},
        {"level": "word"},
        {"level": "symbol"},
        {"level": "byte"},
        {"level": "character", "lowercase": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("tied", ["all", "target"])
def test_its_tokenizer_gives_our_ids_and_our_text(
    tmp_path: Path, level: dict[str, Any], tied: str
) -> None:
    model = tiny(tie_embeddings=tied)
    tokens = Tokens.train(recipe.Tokens.model_validate(level), [*WORDS, "The <tea>, é 茶!"])
    model = Transducer.create(model.recipe, tokens, tokens)
    export(model, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    first = 0 if tied == "all" else len(tokens)
    texts = ["a cup  of tea", " zuko ", "The <tea>, é 茶!", "</s> iroh <pad>", "ß\ttea\nmade"]
    for text in texts:
        ids = tokens.encode(text)
        assert tokenizer(text).input_ids == [*ids, END]
        written = [first + number for number in [BEGIN, *ids, END]]
        assert tokenizer.decode(written, skip_special_tokens=True) == tokens.decode(ids)


def test_outputs_that_never_end_are_cut_where_ours_are(tmp_path: Path) -> None:
    """By the generation config where the source is as long as those of training at most are, and
    any source by the call that the card tells."""
    longest = "iroh made tea"
    splits = {split: {"name": "copy", "split": split} for split in ("train", "valid")}
    tokens = {"both": {"level": "character"}}
    data = {**splits, "tokens": tokens, "max_length": len(longest)}
    model = tiny(tie_embeddings="all", banned=True, data=data)
    model.network.head.bias.data[END] = -100.0
    tokenizer, network, _ = loaded(model, tmp_path)
    ours = {text: model.run([text], beam=1)[0] for text in (longest, "zuko")}
    assert len(ours["zuko"].tokens) < len(ours[longest].tokens)

    def written(text: str, **settings: Any) -> str:
        found = network.generate(**tokenizer([text], return_tensors="pt"), num_beams=1, **settings)
        (reported,) = tokenizer.batch_decode(found, skip_special_tokens=True)
        return str(reported)

    assert written(longest) == ours[longest].text
    card = (tmp_path / "README.md").read_text("utf-8")
    ((ratio, extra),) = re.findall(r"max_length=int\(([\d.]+) \* inputs.*?\) \+ (\d+)\)", card)
    for text, output in ours.items():
        length = tokenizer([text], return_tensors="pt").input_ids.shape[1]
        assert written(text, max_length=int(float(ratio) * length) + int(extra)) == output.text


REFUSED = {
    "recurrent": {"encoder": {"kind": "recurrent"}, "decoder": {"kind": "recurrent"}},
    "swiglu": {"activation": "swiglu"},
    "norm: rms": {"norm": "rms"},
    "positions: rotary": {"positions": "rotary"},
    "concatenates": {"combine": "concatenate"},
    "post-norm with learned positions": {"positions": "learned", "norm_position": "post"},
    "pruned": {"layer_heads": [2, 1]},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_no_class_is_equal_to_is_refused(tmp_path: Path, reason: str) -> None:
    options = REFUSED[reason]
    sides = options if "encoder" in options else {"encoder": options, "decoder": options}
    with pytest.raises(ModelError, match=reason):
        export(tiny(**sides), tmp_path / "export")


def test_sides_that_differ_and_untied_embeddings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="norm_position is post in its encoder, but pre"):
        export(tiny({"norm_position": "post"}), tmp_path)
    with pytest.raises(ModelError, match="tie_embeddings: none"):
        export(tiny(tie_embeddings="none"), tmp_path)


def language_model(tied: str, output_bias: bool = True) -> LanguageModel:
    part = {"norm": "rms", "activation": "swiglu", "positions": "rotary"}
    values = {
        "task": "language_modeling",
        "data": {
            "train": {"text": "x", "lines": "apart"},
            "valid": {"text": "x", "lines": "apart"},
            "tokens": {"both": {"level": "character"}},
            "max_length": 30,
        },
        "model": {
            "width": 16,
            "tie_embeddings": tied,
            "output_bias": output_bias,
            "decoder": {"layers": 2, "heads": 2, "feed_forward": 24, **part},
        },
    }
    torch.manual_seed(1)
    tokens = Tokens.train(recipe.Tokens(level="character"), WORDS)
    model = LanguageModel.create(Recipe.model_validate(values), tokens, tokens)
    for name, parameter in model.network.named_parameters():
        if not name.startswith("head.bias"):
            parameter.data.normal_(std=0.3)
    return model


@pytest.mark.parametrize(("tied", "name"), [("none", "LlamaForCausalLM"), ("target", "Granite")])
def test_language_models_are_llama_and_granite(tmp_path: Path, tied: str, name: str) -> None:
    model = language_model(tied)
    assert export(model, tmp_path).startswith(name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    network = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    for text in WORDS:
        inputs = tokenizer(text, return_tensors="pt")
        written = [*model.target_tokens.encode(text), END]
        assert inputs.input_ids.tolist() == [[BEGIN, *written[:-1]]]
        with torch.inference_mode():
            log_probs_TV = network(**inputs).logits[0].log_softmax(dim=-1)
        theirs = log_probs_TV[torch.arange(len(written)), written].tolist()
        (ours,) = model.score([text])
        assert theirs == pytest.approx(ours.token_log_probabilities, abs=1e-5)


def test_a_language_model_with_a_bias_above_it_is_refused_unless_it_is_left_out(
    tmp_path: Path,
) -> None:
    def train(model: LanguageModel) -> None:
        optimizer = torch.optim.SGD(model.network.parameters(), lr=0.1)
        ids = [BEGIN, *model.target_tokens.encode(WORDS[2]), END]
        none_B = torch.zeros(1, dtype=torch.long)
        model.network.loss(none_B[:, None], none_B, torch.tensor([ids])).total.backward()
        optimizer.step()

    model = language_model("none")
    train(model)
    with pytest.raises(ModelError, match=r"bias that is not zero.*model\.output_bias: false"):
        export(model, tmp_path)
    model = language_model("none", output_bias=False)
    train(model)
    model.save(tmp_path / "ours")
    model = load(tmp_path / "ours")
    assert "head.bias" not in dict(model.network.named_parameters())
    assert export(model, tmp_path / "there") == "LlamaForCausalLM"
    network = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "there").eval()
    ids = [BEGIN, *model.target_tokens.encode(WORDS[2]), END]
    with torch.inference_mode():
        log_probs_TV = network(torch.tensor([ids[:-1]])).logits[0].log_softmax(dim=-1)
    expected = log_probs_TV[torch.arange(len(ids) - 1), ids[1:]].tolist()
    (ours,) = model.score([WORDS[2]])
    assert ours.token_log_probabilities == pytest.approx(expected, abs=1e-5)


def test_the_folder_has_a_card_and_settings_of_our_search(tmp_path: Path) -> None:
    model = tiny(decode={"beam": 4, "length_penalty": 0.5, "no_repeat_ngram": 3})
    export(model, tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "library_name: transformers" in card
    assert "AutoModelForSeq2SeqLM" in card
    settings = json.loads((tmp_path / "generation_config.json").read_text())
    assert (settings["num_beams"], settings["no_repeat_ngram_size"]) == (4, 3)


def test_an_export_is_measured_with_transformers_and_a_wrong_one_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def here(
        folder: Path, engine: str, pairs: Any, sources: Any, scratch: Path, module: str = ""
    ) -> Measurement:
        given = ([pair.source for pair in pairs], [pair.target for pair in pairs])
        if module:
            return measure(folder, Path(engine), given, list(sources))
        return measure_here(folder, engine, given, sources)

    monkeypatch.setattr(exports, "measure_in_subprocess", here)
    model = tiny(seed=5, metrics=["chrf"])
    model.save(tmp_path / "model")
    files = (tmp_path / "a", tmp_path / "b")
    for file, texts in zip(files, (TEXTS, TARGETS), strict=True):
        file.write_text("\n".join(text for text in texts[:4] if text) + "\n")
    files[1].write_text("tea\nuncle\na\ncup\n")
    place, parity = exports.export_folder(
        tmp_path / "model", "huggingface", folder=tmp_path / "hf", files=files
    )
    assert isinstance(parity, Parity)
    assert parity.largest_difference < 1e-5
    assert parity.identical_greedy == 1.0
    assert "log-probabilities" in (place / "PARITY.md").read_text()

    def wrong(model: Any, folder: Path) -> str:
        model.network.head.bias.data[7] += 3
        return export(model, folder)

    monkeypatch.setattr(exports.huggingface, "export", wrong)
    with pytest.raises(ModelError, match="the export is not kept"):
        exports.export_folder(
            tmp_path / "model", "huggingface", folder=tmp_path / "other", files=files
        )
    assert not (tmp_path / "other").exists()
