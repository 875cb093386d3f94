"""Adapters in PEFT's own files, checked with PEFT itself on models of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hugging_face_twins import language_twin_of, log_probabilities, twin_of
from tiny_models import SOURCES, TARGETS, WORDS, tiny
from transduce import recipe
from transduce.adapters import Adapter, AdapterState, LowRankWeights, adaptable
from transduce.adapters.peft import read_peft, write_peft
from transduce.data.tokens.tokenizer import BEGIN, END, Tokens
from transduce.errors import ModelError
from transduce.interop.adapters import merge_folder, open_adapter
from transduce.models.weights import weights_of
from transduce.nn.low_rank import row_norms
from transduce.recipe import Recipe
from transduce.tasks.language_model import LanguageModel
from transduce.tasks.model import Model
from transduce.tasks.transduce import Transducer, load

SHAPES = {
    "marian": {"norm_position": "post", "activation": "relu"},
    "pegasus": {"activation": "relu"},
    "blenderbot": {"positions": "learned", "max_positions": 300, "activation": "gelu"},
}


def made(kind: str) -> Transducer:
    return tiny(SHAPES[kind], SHAPES[kind], tie_embeddings="all")


def drawn_adapter(model: Model, rank: int, magnitude: bool, only: str = "") -> AdapterState:
    """An adapter with random weights, large enough to change what the model says."""
    torch.manual_seed(5)
    weights = weights_of(model.network)
    found = {}
    for name, place in adaptable(model.network).items():
        if not name.endswith(only) or name == "head":
            continue
        matrix = place.of(weights)
        lengths = row_norms(matrix) * (1 + 0.2 * torch.rand(len(matrix))) if magnitude else None
        found[name] = LowRankWeights(
            torch.randn(rank, matrix.shape[1]) * 0.2,
            torch.randn(len(matrix), rank) * 0.2,
            2.0,
            lengths,
        )
    return AdapterState(found)


def largest(model: Transducer, twin: Any) -> float:
    """The largest difference of log-probabilities between ours and theirs."""
    found = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        ours = torch.tensor(model.score([source], [target])[0].token_log_probabilities)
        ids = [model.source_tokens.encode(source), model.target_tokens.encode(target)]
        found.append((ours - log_probabilities(twin, *ids)).abs().max().item())
    return max(found)


@pytest.mark.parametrize("magnitude", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("kind", list(SHAPES))
def test_what_we_write_peft_reads(kind: str, magnitude: bool, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="the package peft is not installed")
    model = made(kind)
    twin = twin_of(model, kind)
    assert largest(model, twin) < 1e-4
    state = drawn_adapter(model, 3, magnitude)
    write_peft(state, model, tmp_path, str(tmp_path / "exported"))
    model.use_adapter(model.add_adapter(Adapter(tmp_path, state)))
    assert largest(model, twin) > 0.1
    assert largest(model, peft.PeftModel.from_pretrained(twin, str(tmp_path)).eval()) < 1e-4


@pytest.mark.parametrize("magnitude", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("kind", ["marian", "blenderbot"])
def test_what_peft_writes_we_read(kind: str, magnitude: bool, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="the package peft is not installed")
    model = made(kind)
    twin = twin_of(model, kind)
    config = peft.LoraConfig(
        task_type="SEQ_2_SEQ_LM",
        r=2,
        lora_alpha=6,
        target_modules=["q_proj", "v_proj", "fc1", "fc2", "out_proj"],
        rank_pattern={"fc2": 4},
        alpha_pattern={"v_proj": 10},
        use_dora=magnitude,
    )
    adapted = peft.get_peft_model(twin, config).eval()
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
            if "magnitude" in name:
                parameter.mul_(1 + 0.2 * torch.rand_like(parameter))
    adapted.save_pretrained(str(tmp_path))
    assert largest(model, adapted) > 0.1
    with model.adapter(open_adapter(tmp_path, model)):
        assert largest(model, adapted) < 1e-4
    model.save(tmp_path / "base")
    merge_folder(tmp_path, tmp_path / "merged", tmp_path / "base")
    merged = load(tmp_path / "merged")
    assert isinstance(merged, Transducer)
    assert largest(merged, adapted) < 1e-4


@pytest.mark.parametrize("magnitude", [False, True], ids=["lora", "dora"])
def test_language_models_as_llama(magnitude: bool, tmp_path: Path) -> None:
    """Gate and value of SwiGLU are one matrix of ours and two there, each with its own A."""
    peft = pytest.importorskip("peft", reason="the package peft is not installed")
    part = {
        "layers": 2,
        "heads": 2,
        "feed_forward": 24,
        "norm": "rms",
        "activation": "swiglu",
        "positions": "rotary",
    }
    settings = Recipe.model_validate(
        {
            "task": "language_modeling",
            "data": {
                "train": {"name": "copy", "split": "train"},
                "valid": {"name": "copy", "split": "valid"},
                "tokens": {"both": {"level": "character"}},
            },
            "model": {"width": 16, "tie_embeddings": "none", "decoder": part},
        }
    )
    tokens = Tokens.train(recipe.Tokens(level="character"), WORDS)
    torch.manual_seed(3)
    model = LanguageModel.create(settings, tokens, tokens)
    model.network.eval()
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            parameter.normal_(std=0.3).add_(1.0 if "norm" in name else 0.0)
        model.network.head.bias.zero_()
    twin = language_twin_of(model)
    ids = torch.tensor([[BEGIN, *tokens.encode("a cup of tea"), END]])

    def differs(other: Any) -> float:
        with torch.no_grad():
            theirs = other(input_ids=ids).logits
            return float(
                (torch.log_softmax(model.network.logits(ids), -1) - torch.log_softmax(theirs, -1))
                .abs()
                .max()
            )

    assert differs(twin) < 1e-4
    state = drawn_adapter(model, 3, magnitude)
    write_peft(state, model, tmp_path, str(tmp_path / "exported"))
    theirs = peft.PeftModel.from_pretrained(twin, str(tmp_path)).eval()
    assert differs(theirs) > 0.1
    with model.adapter(Adapter(tmp_path, state)):
        assert differs(theirs) < 1e-4
    torch.manual_seed(4)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "lora_A" in name:
                parameter.normal_(std=0.2)
    theirs.save_pretrained(str(tmp_path / "back"))
    with model.adapter(read_peft(tmp_path / "back", model)):
        assert differs(theirs) < 1e-4


def test_an_adapter_written_and_read_is_the_same(tmp_path: Path) -> None:
    model = made("pegasus")
    state = drawn_adapter(model, 3, True, only=".q")
    write_peft(state, model, tmp_path)
    back = read_peft(tmp_path, model).state.low_rank
    assert list(back) == list(state.low_rank)
    assert all(torch.equal(back[n].A_RD, one.A_RD) for n, one in state.low_rank.items())
    assert all(torch.equal(back[n].B_FR, one.B_FR) for n, one in state.low_rank.items())
    assert {one.scale for one in back.values()} == {2.0}


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"peft_type": "IA3"}, "IA3"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"alpha_pattern": {"(a+)+$": 3}}, "regular expression"),
        ({"use_dora": True}, "magnitudes"),
    ],
)
def test_what_has_no_equal_is_refused(
    change: dict[str, Any], reported: str, tmp_path: Path
) -> None:
    model = made("pegasus")
    write_peft(drawn_adapter(model, 2, False), model, tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ModelError, match=reported):
        read_peft(tmp_path, model)


def test_a_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    larger, smaller = made("pegasus"), tiny({"layers": 1}, {"layers": 1})
    write_peft(drawn_adapter(larger, 2, False), larger, tmp_path)
    with pytest.raises(ModelError, match="no place in this model"):
        read_peft(tmp_path, smaller)


def test_models_without_an_equal_are_refused(tmp_path: Path) -> None:
    model = tiny({"positions": "rotary"}, {"positions": "rotary"})
    with pytest.raises(ModelError, match="positions: rotary"):
        write_peft(drawn_adapter(model, 2, False), model, tmp_path)
