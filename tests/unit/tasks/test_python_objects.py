"""Models as a person meets them in Python: what is listed, shown and completed."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import transduce
from transduce.decoding.settings import Settings
from transduce.decoding_settings import RunKeywords
from transduce.errors import ModelError
from transduce.models.encoder_decoder import EncoderDecoder
from transduce.models.label_network import LabelNetwork
from transduce.models.language_model import LanguageModelNetwork
from transduce.tasks import Model
from transduce.tasks.encoder_decoder import Transducer
from transduce.tasks.generate import Decoder
from transduce.whisper import WhisperModel

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
SHOWN = {
    "translate": "<Transducer, task transduce: transformer, 5,896 parameters, 8 source and 8 "
    "target tokens, from ",
    "lstm": "<Transducer, task transduce: recurrent, 3,008 parameters, 8 source and 8 target ",
    "speech": "<SpeechModel, task transduce: conformer encoder, transformer decoder, 16,256 "
    "parameters, 8 tokens, from ",
    "language_model": "<LanguageModel, task language_modeling: transformer, 2,545 parameters, "
    "17 tokens, ",
    "classify": "<Classifier, task classify: pooled, 106 parameters, 11 source and 6 target ",
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_model_says_what_it_is(name: str) -> None:
    shown = repr(transduce.load(MODELS / name))
    assert shown.startswith(SHOWN[name])
    assert shown.endswith(f"from {MODELS / name}>")


def test_the_package_lists_its_names_without_loading_torch() -> None:
    lines = "import sys, transduce; print(*dir(transduce)); print('torch' in sys.modules)"
    reported = subprocess.run(
        [sys.executable, "-c", lines], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    listed = set(reported[0].split())
    assert {*transduce.__all__, "models", "nn", "tasks", "__version__"} <= listed
    assert not listed & {"Any", "import_module"}
    assert reported[1] == "False"
    assert all(hasattr(transduce, name) for name in dir(transduce))


def test_the_keywords_of_run_are_declared_for_editors() -> None:
    taken = {field.name for field in fields(Settings)}
    classes = [Model]
    for kind in classes:
        classes += [one for one in kind.__subclasses__() if one.__module__.startswith("transduce.")]
    for method in (*(kind.run for kind in classes), Transducer._run, Decoder.run):
        for parameter in inspect.signature(method).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY:
                taken.add(parameter.name)
    assert WhisperModel in classes
    assert set(RunKeywords.__annotations__) == taken
    for method in (Model.run, Model.stream, Model.__call__):
        assert "RunKeywords" in str(inspect.signature(method))


def test_a_model_is_used_as_a_module_is() -> None:
    model = transduce.load(MODELS / "translate")
    assert sum(one.numel() for one in model.parameters()) == 5896
    assert model.train() is model
    assert model.network.training
    assert model.eval() is model
    assert not model.network.training
    assert model.to("cpu").device == torch.device("cpu")


def network(name: str) -> torch.nn.Module:
    return transduce.load(MODELS / name).network


SOURCE, LENGTHS, TARGET = torch.tensor([[4, 5, 3], [4, 3, 0]]), torch.tensor([3, 2]), [[2, 4]] * 2


@pytest.mark.parametrize(
    ("source", "lengths", "target", "said"),
    [
        (SOURCE, [3, 4], TARGET, "lengths_B has the length 4; source_BS is 3 long"),
        (SOURCE, [-1, 3], TARGET, "lengths_B has the length -1"),
        (SOURCE, [3], TARGET, r"lengths_B has the shape \(1,\), but there are 2 sources"),
        (
            SOURCE + 5,
            [3, 2],
            TARGET,
            "source_BS has the id 10; the vocabulary has 8 tokens, 0 to 7",
        ),
        (SOURCE - 4, [3, 2], TARGET, "source_BS has the id -4"),
        (SOURCE, [3, 2], [[2, 8]] * 2, "target_BT has the id 8"),
        (SOURCE, [3, 2], [[2, 4]], "there are 2 sources, but 1 targets"),
        (SOURCE, [3, 2], [2, 4], r"target_BT has the shape \(2,\)"),
    ],
)
def test_logits_of_what_does_not_fit(
    source: torch.Tensor, lengths: list[int], target: list[list[int]], said: str
) -> None:
    net = network("translate")
    assert isinstance(net, EncoderDecoder)
    assert net.logits(SOURCE, LENGTHS, torch.tensor(TARGET)).shape == (2, 2, 8)
    with pytest.raises(ModelError, match=said):
        net.logits(source, torch.tensor(lengths), torch.tensor(target))


def test_logits_of_other_networks() -> None:
    language = network("language_model")
    assert isinstance(language, LanguageModelNetwork)
    with pytest.raises(ModelError, match="target_BT has the id 17"):
        language.logits(torch.tensor([[2, 17]]))
    label_network = network("tag")
    assert isinstance(label_network, LabelNetwork)
    with pytest.raises(ModelError, match="lengths_B has the length 5"):
        label_network.logits(SOURCE, torch.tensor([3, 5]))
