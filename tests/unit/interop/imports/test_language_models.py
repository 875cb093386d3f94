"""GPT-2 and models of Llama's shape with random weights: what transformers says, and no other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import optional
import transduce
from hf_models import TEXTS, byte_level
from slow_params import some_slow
from tiny_models import WORDS
from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, END, Tokens
from transduce.errors import ModelError
from transduce.interop.imports import language_models
from transduce.interop.imports.configuration import Configuration
from transduce.interop.imports.huggingface import read_weights
from transduce.interop.imports.language_models import read_language_tokens
from transduce.interop.imports.registry import import_model
from transduce.interop.imports.weights import imported_recipe
from transduce.tasks.language_model import LanguageModel

transformers = optional.package("transformers")

LLAMA: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-3,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"},
}
GPT2: dict[str, Any] = {
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 64,
    "layer_norm_epsilon": 1e-3,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", GPT2),
    "llama": ("Llama", LLAMA),
    "llama-tied": ("Llama", LLAMA | {"tie_word_embeddings": True, "head_dim": 6}),
    "llama-biases": ("Llama", LLAMA | {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", LLAMA | {"sliding_window": None}),
    "qwen2": ("Qwen2", LLAMA | {"use_sliding_window": False, "num_key_value_heads": 4}),
}


def tokenizer_of(name: str, folder: Path) -> Any:
    if name == "gpt2":  # one token begins, ends and pads
        vocabulary, merges = byte_level(folder, ["<|endoftext|>"])
        return transformers.GPT2Tokenizer(vocab=vocabulary, merges=merges)
    if name == "qwen2":
        vocabulary, merges = byte_level(folder, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
        return transformers.Qwen2Tokenizer(vocab=vocabulary, merges=merges)
    vocabulary, merges = byte_level(folder, ["<unk>", "<s>", "</s>", "<mask>"])
    made = transformers.GPT2Tokenizer(
        vocab=vocabulary, merges=merges, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    made.add_special_tokens({"additional_special_tokens": ["<mask>"]})
    return made


def written(name: str, folder: Path) -> None:
    folder.mkdir()
    tokenizer = tokenizer_of(name, folder)
    kind, settings = MODELS[name]
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    size = len(tokenizer) + 3  # more rows than tokens, as many have
    config = getattr(transformers, f"{kind}Config")(**settings, **ids, vocab_size=size)
    head = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    network = getattr(transformers, head)(config)
    torch.manual_seed(7)
    with torch.no_grad():
        for key, parameter in network.named_parameters():
            parameter.normal_(std=0.4)
            parameter.add_(("norm" in key or ".ln_" in key) and key.endswith("weight"))
    network.to(torch.bfloat16 if name == "mistral" else torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Both:
    """A model there, and imported."""

    def __init__(self, name: str, folder: Path) -> None:
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        written(name, folder / "there")
        import_model(folder / "there", folder / "ours")
        model = transduce.load(folder / "ours")
        assert isinstance(model, LanguageModel)
        self.model, self.there = model, folder / "there"
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "there")
        self.network = transformers.AutoModelForCausalLM.from_pretrained(
            folder / "there", dtype=torch.float32
        ).eval()
        config = json.loads((folder / "there" / "config.json").read_text())
        _, self.layout = read_language_tokens(
            folder / "there", Configuration(config, "there"), config["vocab_size"]
        )
        end = self.network.config.eos_token_id
        self.begin = (
            end if self.network.config.bos_token_id is None else (self.network.config.bos_token_id)
        )

    def theirs(self, ids: list[int]) -> list[int]:
        found = [self.layout.rows[number] for number in ids]
        return [row for row in found if row is not None]


@pytest.fixture(
    scope="module", params=some_slow(MODELS, ["gpt2", "llama", "llama-tied", "mistral"])
)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(request.param, tmp_path_factory.mktemp(request.param))


def test_texts_have_the_same_ids(both: Both) -> None:
    for text in [*TEXTS, "odd   spaces ", "naïve 🙂 café 12345", "it's\n\nnew", "<|endoftext|>x"]:
        expected = both.tokenizer(text, add_special_tokens=False).input_ids
        ours = both.model.target_tokens.encode(text)
        if "<|" not in text:
            assert both.theirs(ours) == expected
        assert END not in ours  # a text cannot end itself
        assert both.model.target_tokens.decode(ours) == text


@torch.inference_mode()
def test_log_probabilities_are_the_same(both: Both) -> None:
    assert not both.model.endless
    for text, score in zip(TEXTS, both.model.score(TEXTS), strict=True):
        ids = both.theirs([*both.model.target_tokens.encode(text), END])
        logits_TV = both.network(torch.tensor([[both.begin, *ids[:-1]]])).logits[0]
        expected = logits_TV.log_softmax(dim=-1)[torch.arange(len(ids)), ids]
        assert score.token_log_probabilities == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("beam", [1, 3])
def test_continuations_are_the_same(both: Both, beam: int) -> None:
    """Beams without a length penalty, which is another one there; all are cut at one length."""
    longest = 8
    end = both.network.config.eos_token_id
    for prompt in [text[:12] for text in TEXTS[:2]]:
        (output,) = both.model.run([prompt], beam=beam, length_penalty=0.0, max_length=longest)
        ids = [both.begin, *both.theirs(both.model.target_tokens.encode(prompt))]
        rows = both.network.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            do_sample=False,
            num_beams=beam,
            length_penalty=0.0,
            max_new_tokens=longest,
            pad_token_id=end,
            suppress_tokens=[] if both.begin == end else [both.begin],
        )[0, len(ids) :].tolist()
        assert both.theirs(output.ids) == (rows[: rows.index(end)] if end in rows else rows)
        assert output.text.startswith(prompt)


def test_export_gives_the_weights_back_bit_for_bit(both: Both, tmp_path: Path) -> None:
    from transduce.interop.huggingface.export import export

    export(both.model, tmp_path / "back")
    theirs, back = read_weights(both.there), read_weights(tmp_path / "back")
    assert theirs.keys() == back.keys()
    for name, tensor in theirs.items():
        assert tensor.dtype == back[name].dtype
        assert torch.equal(tensor, back[name]), name
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert tokenizer(TEXTS).input_ids == both.tokenizer(TEXTS).input_ids


def test_what_was_trained_apart_is_not_exported(tmp_path: Path) -> None:
    from transduce.interop.huggingface.export import export

    both = Both("llama", tmp_path)
    network = both.model.network
    with torch.no_grad():
        network.head.bias[7] = 1.0
    with pytest.raises(ModelError, match="learned a bias"):
        export(both.model, tmp_path / "back")
    with torch.no_grad():
        network.head.bias[7] = 0.0
        network.decoder.norm.weight[0] += 1  # type: ignore[index, operator]
        block = network.decoder.stack[0]  # type: ignore[union-attr]
        block.feed_forward.contract.bias[3] = 1.0
    with pytest.raises(ModelError, match=r"mlp\.down_proj\.bias was learned"):
        export(both.model, tmp_path / "back")
    with torch.no_grad():
        block.feed_forward.contract.bias[3] = 0.0
    export(both.model, tmp_path / "back")
    with torch.no_grad():
        block.self_attention.in_projection.weight[-1] += 1
    with pytest.raises(ModelError, match="trained apart"):
        export(both.model, tmp_path / "back")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {name: tmp_path_factory.mktemp(name) / "there" for name in ("gpt2", "llama", "mistral")}
    for name, folder in found.items():
        written(name, folder)
    return found


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "yarn"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act"),
        ("llama", {"num_key_value_heads": 3}, "4 heads cannot be divided among 3"),
        ("llama", {"num_hidden_layers": 1}, "no place for"),
        ("llama", {"num_hidden_layers": "two"}, "num_hidden_layers"),
        ("llama", {"eos_token_id": None}, "eos_token_id"),
        ("llama", {"embedding_multiplier": 3.0}, "embedding_multiplier"),
        ("mistral", {"sliding_window": 8}, "sliding_window"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx"),
        ("gpt2", {"n_inner": 20}, "and not"),
    ],
)
def test_what_we_have_no_equal_of(
    folders: dict[str, Path], tmp_path: Path, name: str, change: dict[str, Any], reason: str
) -> None:
    shutil.copytree(folders[name], tmp_path / "there")
    path = tmp_path / "there" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match=reason):
        language_models.read(tmp_path / "there")


def test_a_tokenizer_that_is_not_there(folders: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(folders["gpt2"], tmp_path / "there")
    (tmp_path / "there" / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(ModelError, match="no model of a tokenizer"):
        language_models.read(tmp_path / "there")
    (tmp_path / "there" / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        language_models.read(tmp_path / "there")


@pytest.mark.parametrize("tied", ["target", "none"])
def test_our_own_export_comes_back(tmp_path: Path, tied: str) -> None:
    """As Llama or Granite; epsilon, wavelengths and heads of an own width are theirs too."""
    from transduce.interop.huggingface.export import export

    part = {"layers": 2, "heads": 2, "feed_forward": 20, "norm": "rms", "activation": "swiglu"}
    part |= {"positions": "rotary", "rotary_base": 300.0, "norm_epsilon": 0.01, "head_width": 6}
    tokens = Tokens.train(recipe.Tokens(level="subword", size=60), WORDS)
    model_section = {"width": 16, "tie_embeddings": tied, "decoder": part}
    settings = imported_recipe("lm", model_section, (tokens, tokens), task="language_modeling")
    torch.manual_seed(3)
    model = LanguageModel.create(settings, tokens, tokens)
    with torch.no_grad():
        for key, parameter in model.network.named_parameters():
            if key != "head.bias":
                parameter.normal_(std=0.4)
    model.network.eval()
    export(model, tmp_path / "there")
    import_model(tmp_path / "there", tmp_path / "ours")
    again = transduce.load(tmp_path / "ours")
    network = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "there").eval()
    texts = ["tea", "a cup of tea"]
    for text, one, two in zip(texts, model.score(texts), again.score(texts), strict=True):
        assert one.token_log_probabilities == pytest.approx(two.token_log_probabilities, abs=1e-5)
        ids = [BEGIN, *tokens.encode(text), END]
        with torch.no_grad():
            logits_TV = network(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
        expected = logits_TV[torch.arange(len(ids) - 1), ids[1:]].tolist()
        assert one.token_log_probabilities == pytest.approx(expected, abs=1e-4)
