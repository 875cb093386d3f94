"""A model with the further models of its folder: an ensemble, or one for each tag."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tiny_models import WORDS, tiny
from transduce import recipe
from transduce.batch_inference.job import Settings, digest_of_model, digests_of
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError
from transduce.interop.export import export_folder
from transduce.serving.engine import Engine
from transduce.serving.jobs import RUN, plan_of
from transduce.serving.limits import Limits
from transduce.serving.models import open_models
from transduce.tasks.folder import MEMBERS, WEIGHTS
from transduce.tasks.members import Members, folder_in_use, says_alone, write_members
from transduce.tasks.observer import RunObserver, TokenStep, Watch
from transduce.tasks.transduce import Transducer, load
from transduce.training import run_report

TAGGED = ["<de> tea", "<fr> tea", "tea", "<fr> a cup", "<de> a cup"]


def tagged(seed: int) -> Transducer:
    """A model whose vocabulary has the tags de and fr."""
    plain = tiny(seed=seed)
    tokens = Tokens.train(recipe.Tokens(level="character"), WORDS, ["de", "fr"])
    torch.manual_seed(seed)
    model = Transducer.create(plain.recipe, tokens, tokens)
    model.network.eval()
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models: the first, and two within its folder."""
    place = tmp_path_factory.mktemp("runs") / "pairs"
    for path, seed in ((place, 1), (place / "seed-2", 2), (place / "of" / "fr", 3)):
        tagged(seed).save(path)
    return place


def texts(outputs: Any) -> list[str]:
    return [output.text for output in outputs]


def test_a_folder_with_an_ensemble_is_one_everywhere(folder: Path) -> None:
    write_members(folder, [folder / "seed-2", folder / "of" / "fr"])
    first, *others = (load(one, members=False) for one in (folder, folder / "seed-2"))
    others.append(load(folder / "of" / "fr"))
    together = load(folder)
    assert isinstance(together, Transducer)
    expected = first.run(TAGGED, ensemble=others)
    assert texts(together.run(TAGGED)) == texts(expected)
    assert [o.score for o in together.run(TAGGED)] == pytest.approx([o.score for o in expected])
    assert texts(first.run(TAGGED)) != texts(expected)  # else this would show nothing
    assert texts(together.run(TAGGED, ensemble=[])) == texts(first.run(TAGGED))
    assert texts(together.run(TAGGED, ensemble=others[:1])) == texts(
        first.run(TAGGED, ensemble=others[:1])
    )
    pieces = "".join(together.stream(TAGGED[0]))
    assert pieces == first.run(TAGGED[:1], ensemble=others, beam=1)[0].text
    assert "an ensemble of 3 models" in repr(together)


def test_a_folder_with_a_model_for_each_tag(folder: Path) -> None:
    write_members(folder, by_tag={"de": folder / "seed-2", "fr": folder / "of" / "fr"})
    together = load(folder)
    assert isinstance(together, Transducer)
    alone = [load(folder / place, members=False) for place in (".", "seed-2", "of/fr")]
    chosen = [alone[1], alone[2], alone[0], alone[2], alone[1]]
    expected = [one.run([source])[0] for one, source in zip(chosen, TAGGED, strict=True)]
    assert texts(together.run(TAGGED)) == texts(expected)
    assert texts(together.run(TAGGED, ensemble=())) == texts(alone[0].run(TAGGED))
    assert len({tuple(texts(one.run(TAGGED))) for one in alone}) == 3
    streamed = ["".join(together.stream(source)) for source in TAGGED]
    greedy = [one.run([s], beam=1)[0].text for one, s in zip(chosen, TAGGED, strict=True)]
    assert streamed == greedy
    targets = ["tea", "cup", "a", "uncle", "zuko"]
    scores = [
        one.score([source], [target])[0].token_log_probabilities
        for one, source, target in zip(chosen, TAGGED, targets, strict=True)
    ]
    for found, score in zip(together.score(TAGGED, targets), scores, strict=True):
        assert found.token_log_probabilities == pytest.approx(score, abs=1e-5)


def test_settings_of_each_source_go_with_it(folder: Path) -> None:
    write_members(folder, by_tag={"de": folder / "seed-2", "fr": folder / "of" / "fr"})
    together = load(folder)
    prefixes = ["t", "u", "z", "i", "a"]
    outputs = together.run(TAGGED, prefix=prefixes)
    assert [output.text[:1] for output in outputs] == prefixes
    phrases = [["z"], [], ["uu"], ["k"], ["ii"]]
    for output, wanted in zip(together.run(TAGGED, include=phrases), phrases, strict=True):
        assert all(one in output.text for one in wanted)
    assert all("z" in output.text for output in together.run(TAGGED, include=["z"]))
    liked = together.run(TAGGED, hotwords=[[], ["zuko"], [], [], []], hotword_bonus=50.0)
    assert ["zuko" in output.text for output in liked].index(True) == 1
    drawn = together.run(TAGGED, sample=True, seed=[5, 6, 7, 8, 9])
    alone = load(folder / "of" / "fr")
    assert drawn[3].text == alone.run(TAGGED[3:4], sample=True, seed=8)[0].text
    with pytest.raises(ModelError, match="prefix has 2 entries"):
        together.run(TAGGED, prefix=["a", "b"])


def test_an_observer_hears_of_the_sources_as_they_were_numbered(folder: Path) -> None:
    write_members(folder, by_tag={"de": folder / "seed-2", "fr": folder / "of" / "fr"})
    together = load(folder)

    class Written(RunObserver):
        def __init__(self) -> None:
            self.watched = dict.fromkeys(range(len(TAGGED)), Watch())
            self.text = [""] * len(TAGGED)

        def token(self, source: int, step: TokenStep) -> None:
            self.text[source] += step.text

    seen = Written()
    assert texts(together.run(TAGGED, beam=1, observer=seen)) == seen.text


def test_a_lens_shows_this_model_so_it_decodes_alone(folder: Path) -> None:
    write_members(folder, by_tag={"de": folder / "seed-2", "fr": folder / "of" / "fr"})
    together, alone = load(folder), load(folder, members=False)
    with together.lens("decoder.*") as seen:
        outputs = together.run(TAGGED)
    assert texts(outputs) == texts(alone.run(TAGGED))
    assert len(seen) == len(TAGGED)


def test_the_device_the_precision_and_freezing_are_of_all(folder: Path) -> None:
    write_members(folder, [folder / "seed-2"])
    together = load(folder, precision="int8").freeze()
    assert isinstance(together, Transducer)
    (other,) = together.members.ensemble
    assert (other.precision, other.frozen) == ("int8", True)


def test_one_model_in_the_place_of_the_first(folder: Path) -> None:
    write_members(folder, model=folder / "seed-2")
    assert folder_in_use(folder) == folder / "seed-2"
    own, other = load(folder, members=False), load(folder / "seed-2")
    for used in (load(folder), open_models([str(folder)], "cpu").first.model):
        assert texts(used.run(TAGGED)) == texts(other.run(TAGGED)) != texts(own.run(TAGGED))
    assert "is used as" in says_alone(folder, "exported")


@pytest.mark.slow
def test_the_model_in_the_place_of_the_first_is_exported(folder: Path) -> None:
    write_members(folder, model=folder / "seed-2")
    other = load(folder / "seed-2")
    place, _ = export_folder(folder, "native", quantize="int8", folder=folder.parent / "small")
    assert load(place, precision="float32").run(["tea"])[0].score == pytest.approx(
        other.run(["tea"])[0].score, rel=0.05
    )


def test_jobs_and_reports_are_of_the_model_that_decodes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_members(folder, model=folder / "seed-2")
    own, other = digest_of_model(folder), digest_of_model(folder / "seed-2")
    # A job goes on only with the model that it began with.
    assert digests_of(str(folder), Settings()) == [other] != [own]
    assert digests_of(str(folder), Settings(ensemble=[])) == [own]
    # The report in a run directory is of the run.
    said: list[Path] = []

    def write_report(model: Transducer, *_: object) -> str:
        assert model.origin is not None
        said.append(model.origin.folder)
        return ""

    monkeypatch.setattr(run_report, "write_report", write_report)
    assert run_report.write_run_report(load(folder), folder, []) == ""
    assert said == [folder]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"model": ["seed-2"]}', "cannot be read"),
        ('{"model": "/etc"}', "not a folder within"),
        ("[1]", "cannot be read"),
        ("{", "cannot be read"),
        ('{"ensemble": "seed-2"}', "cannot be read"),
        ('{"ensemble": [2]}', "cannot be read"),
        ('{"ensemble": ["seed-2", 2]}', "cannot be read"),
        ('{"others": []}', "cannot be read"),
        ('{"ensemble": ["../elsewhere"]}', "'../elsewhere', which is not a folder within"),
        ('{"ensemble": ["of/../../elsewhere"]}', "not a folder within"),
        ('{"by_tag": {"de": "/etc"}}', "'/etc', which is not a folder within"),
        ('{"ensemble": ["."]}', "'.', which is not a folder within"),
        ('{"ensemble": ["link"]}', "'link', which is not a folder within"),
        ('{"ensemble": ["seed-9"]}', "--ensemble none uses the first model alone"),
    ],
)
def test_what_is_wrong_with_the_file_is_said(folder: Path, content: str, said: str) -> None:
    elsewhere = folder.parent / "elsewhere"
    if not elsewhere.exists():
        tagged(4).save(elsewhere)
        (folder / "link").symlink_to(elsewhere)
    (folder / MEMBERS).write_text(content, "utf-8")
    with pytest.raises(ModelError) as caught:
        load(folder)
    assert said in str(caught.value)
    assert MEMBERS in str(caught.value)
    assert load(folder, members=False).run(["tea"])


def test_places_are_within_the_folder_so_that_it_can_be_moved(folder: Path) -> None:
    write_members(folder, [folder / "seed-2"])
    assert json.loads((folder / MEMBERS).read_text()) == {"ensemble": ["seed-2"]}
    moved = folder.rename(folder.with_name("moved"))
    try:
        assert load(moved).run(["tea"])
    finally:
        moved.rename(folder)
    write_members(folder)
    assert not (folder / MEMBERS).exists()
    assert (folder / "seed-2" / WEIGHTS).is_file()


def test_a_served_ensemble_counts_as_so_many_models(folder: Path) -> None:
    write_members(folder, [folder / "seed-2"])
    catalogue = open_models([str(folder)], "cpu")
    served, limits = catalogue.first, Limits()
    plans = {
        settings: plan_of(served, json.loads(settings), None, catalogue, RUN, limits)
        for settings in ('{"beam": 2}', '{"beam": 2, "ensemble": []}')
    }
    for plan in plans.values():
        plan.check(False, limits)
    assert [plan.width for plan in plans.values()] == [4, 2]
    assert not any(plan.continuous for plan in plans.values())
    assert Engine(catalogue, limits).catalogue.first.members.about().startswith("an ensemble of 2")
    assert Members().about() == ""
