"""Encoder-decoders of transformers, imported: the same ids, log-probabilities, outputs; and back.

Beams are compared without a length penalty, as transformers has another one, and with each output
ended at the same length.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import optional
from hf_models import MODELS, TEXTS
from transduce.data.tokens.tokenizer import END
from transduce.errors import ModelError
from transduce.interop.export import export_folder
from transduce.interop.huggingface.ids import Renumbered
from transduce.interop.huggingface.measure import EndAt
from transduce.interop.imports.huggingface import read_origin, read_weights
from transduce.interop.imports.registry import import_model
from transduce.interop.parity import NotCompared
from transduce.tasks.transduce import Transducer, load

transformers = optional.package("transformers")
optional.skip_without("sentencepiece")

LONGEST = 10
ODD = ["odd   spaces  here ", "naïve 🙂 café\u00a0x"]


class Both:
    """A model there, and imported."""

    def __init__(self, name: str, folder: Path) -> None:
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        make, self.languages = MODELS[name]
        self.there, self.ours = folder / "there", folder / "ours"
        self.there.mkdir()
        make(self.there)
        import_model(self.there, self.ours, self.languages or (None, None))
        model = load(self.ours)
        assert isinstance(model, Transducer)
        self.model = model
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.there)
        self.network = transformers.AutoModelForSeq2SeqLM.from_pretrained(self.there).eval()
        if self.languages:
            self.tokenizer.src_lang, self.tokenizer.tgt_lang = self.languages
        origin = read_origin(self.ours)
        assert origin is not None
        self.ids = Renumbered.from_json(origin["target_ids"])


@pytest.fixture(scope="module", params=MODELS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(request.param, tmp_path_factory.mktemp(request.param))


def test_texts_have_the_same_ids(both: Both) -> None:
    texts = TEXTS if "marian" in str(both.there) else [*TEXTS, *ODD]
    if "marian" in str(both.there):  # letters in a row that source.spm does not know: see the docs
        texts = ["A dog runs over the green grass.", "Two  men", " the park ü.", "Zoo"]
    for text in texts:
        ours = both.ids.theirs([*both.model.source_tokens.encode(text), END])
        assert ours == both.tokenizer(text).input_ids


@torch.inference_mode()
def test_log_probabilities_are_the_same(both: Both) -> None:
    start = both.network.config.decoder_start_token_id
    for source, target in zip(TEXTS[:4], TEXTS[2:6], strict=True):
        written = both.ids.theirs([*both.model.target_tokens.encode(target), END])
        read = both.ids.theirs([*both.model.source_tokens.encode(source), END])
        logits_TV = both.network(
            input_ids=torch.tensor([read]),
            decoder_input_ids=torch.tensor([[start, *written[:-1]]]),
        ).logits[0]
        theirs = logits_TV.log_softmax(dim=-1)[torch.arange(len(written)), written]
        (ours,) = both.model.score([source], [target])
        assert theirs.tolist() == pytest.approx(ours.token_log_probabilities, abs=1e-4)


@pytest.mark.parametrize("beam", [1, 3])
def test_outputs_are_the_same(both: Both, beam: int) -> None:
    first = both.model.target_tokens.prefix
    texts = TEXTS[:2]
    inputs = both.tokenizer(texts, return_tensors="pt", padding=True)
    end = both.network.config.eos_token_id
    ending = EndAt([LONGEST + 1 + len(first)] * len(texts), beam, end)
    written = both.network.generate(
        **inputs,
        num_beams=beam,
        do_sample=False,
        length_penalty=0.0,
        max_length=LONGEST + 2 + len(first),
        forced_bos_token_id=both.ids.theirs(first)[0] if first else None,
        suppress_tokens=sorted(set(both.ids.theirs([0, 2])) - {end}),
        logits_processor=transformers.LogitsProcessorList([ending]),
    )
    found = both.model.run(texts, beam=beam, length_penalty=0.0, max_length=LONGEST + len(first))
    for row, output in zip(written.tolist(), found, strict=True):
        expected = row[1 : row.index(end, 1)]
        assert both.ids.theirs(output.ids) == expected
        assert len(expected) > len(first)


def test_export_gives_the_same_weights_and_files(both: Both, tmp_path: Path) -> None:
    place, parity = export_folder(both.ours, "huggingface", folder=tmp_path / "again")
    assert isinstance(parity, NotCompared)
    before, after = read_weights(both.there), read_weights(place)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype
        assert torch.equal(tensor, after[name]), name
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        ours, theirs = (json.loads((folder / name).read_text()) for folder in (place, both.there))
        assert ours == theirs
    again = transformers.AutoTokenizer.from_pretrained(place)
    if both.languages:
        again.src_lang = both.languages[0]
    assert again(TEXTS[0]).input_ids == both.tokenizer(TEXTS[0]).input_ids


# ------------------------------------------------------------------------------- languages


@pytest.fixture(scope="module")
def nllb(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both("nllb", tmp_path_factory.mktemp("nllb"))


def test_languages_are_tokens_of_source_and_target(nllb: Both) -> None:
    model = nllb.model
    (usual,) = model.run(TEXTS[:1], max_length=4)
    assert usual.source_tokens[0] == "<eng_Latn>"
    assert usual.tokens[0] == "<deu_Latn>"
    (other,) = model.run(
        TEXTS[:1], source_language="arb_Arab", target_language="fra_Latn", max_length=4
    )
    assert (other.source_tokens[0], other.tokens[0]) == ("<arb_Arab>", "<fra_Latn>")
    (tagged,) = model.run([f"<arb_Arab> {TEXTS[0]}"], prefix="<fra_Latn>", max_length=4)
    assert tagged == other
    with pytest.raises(ModelError, match=r"no language german.*did you mean"):
        model.run(TEXTS[:1], target_language="german")


def test_an_import_needs_languages_that_the_model_has(nllb: Both, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--source-language and --target-language"):
        import_model(nllb.there, tmp_path / "x")
    with pytest.raises(ModelError, match=r"no language en; did you mean"):
        import_model(nllb.there, tmp_path / "x", ("en", "deu_Latn"))
    assert not (tmp_path / "x").exists()


# ------------------------------------------------------------------------------- refused


def changed(source: Path, folder: Path, **config: Any) -> Path:
    shutil.copytree(source, folder)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **config}))
    (folder / "generation_config.json").unlink()
    return folder


def test_what_has_no_equal_is_refused(nllb: Both, tmp_path: Path) -> None:
    languages = ("eng_Latn", "deu_Latn")

    def refused(name: str, **config: Any) -> pytest.ExceptionInfo[ModelError]:
        folder = changed(nllb.there, tmp_path / name, **config)
        with pytest.raises(ModelError) as reported:
            import_model(folder, tmp_path / "out", languages)
        return reported

    assert "activation_function is 'gelu_new'" in str(
        refused("a", activation_function="gelu_new").value
    )
    assert "no decoder_start_token_id" in str(refused("b", decoder_start_token_id=None).value)
    assert "no format that can be imported" in str(refused("c", model_type="nllb-moe").value)
    folder = changed(nllb.there, tmp_path / "d")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="has no weights"):
        import_model(folder, tmp_path / "out", languages)


def test_a_pickle_that_is_no_plain_weights_is_not_read(nllb: Both, tmp_path: Path) -> None:
    folder = changed(nllb.there, tmp_path / "pickled")
    (folder / "model.safetensors").unlink()
    torch.save({"model": Path("/")}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="other things than the weights"):
        import_model(folder, tmp_path / "out", ("eng_Latn", "deu_Latn"))


def test_a_folder_of_hugging_face_is_named_when_it_is_run(nllb: Both) -> None:
    with pytest.raises(ModelError, match="transduce import"):
        load(nllb.there)


def test_pickled_and_sharded_weights_are_the_same_weights(nllb: Both, tmp_path: Path) -> None:
    weights = read_weights(nllb.there)
    own = nllb.network.state_dict()  # an OrderedDict with versions; some tensors share numbers
    for values in (weights, own):
        for archive in (True, False):  # as torch has written it since 1.6, and before
            pickled = tmp_path / "pytorch_model.bin"
            torch.save(values, pickled, _use_new_zipfile_serialization=archive)
            found = read_weights(tmp_path)
            assert found.keys() == values.keys()
            assert all(torch.equal(found[name], tensor) for name, tensor in values.items())
    (tmp_path / "pytorch_model.bin").unlink()
    nllb.network.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    found = read_weights(tmp_path)
    assert found.keys() == weights.keys()
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    index["weight_map"]["x"] = "../x.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="not a file of its folder"):
        read_weights(tmp_path)
