"""A model, a source and a target as a function of embeddings: what attribution works on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from transduce.data.tokens.tokenizer import BEGIN, END, SPECIALS, UNKNOWN, Tokens
from transduce.decoding.score.logits import forward_and_head
from transduce.errors import DataError, ModelError
from transduce.models.call_context import NO_CONTEXT, Call, CallContext
from transduce.models.hooks import view_of
from transduce.tasks import AudioClassifier, AudioInputModel, LanguageModel, SpeechModel
from transduce.tasks.classify import Classifier
from transduce.tasks.model import Model
from transduce.tasks.speech_transducer import SpeechTransducerModel
from transduce.tasks.tag import Tagger
from transduce.tasks.transduce import Transducer

FROM_TOKENS = ("table", "letters", "ngrams")
"""Modules of a frontend that say what is there, and not where."""


@dataclass(frozen=True)
class Subject:
    """Inputs of one row [1, positions, width], and what becomes of them."""

    names: list[str]
    """Of the inputs: source, prefix."""
    inputs: list[Tensor]
    baselines: list[Tensor]
    features: Callable[[Sequence[Tensor]], Tensor]
    """Inputs [N, positions, width] to what the head reads [N, steps, width]."""
    head: Callable[[Tensor], Tensor]
    wanted: list[int]
    """What the head was to say, from the step `first` on."""
    tokens: Tokens
    target_tokens: list[str]
    source_tokens: list[str] = field(default_factory=list)
    prefix_tokens: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    first: int = 0
    specials: int = 0
    """How many tokens the head does not tell apart, as they are no labels."""
    copied: list[str] = field(default_factory=list)
    """What the numbers beyond the vocabulary stand for, of a model that copies from the source."""

    def piece(self, number: int) -> str:
        """What the head's number stands for."""
        (piece,) = self.tokens.pieces([number + self.specials], self.copied)
        return piece

    def number(self, text: str) -> int:
        """The head's number of a token. Raises ModelError where it is none."""
        ids = self.tokens.encode(text)
        if len(ids) == 1 and ids[0] >= self.specials and self.tokens.pieces(ids) != [SPECIALS[1]]:
            return ids[0] - self.specials
        pieces = self.tokens.pieces(range(self.specials, len(self.tokens)))
        if text in pieces:
            return pieces.index(text)
        raise ModelError(f"the model has no token {text!r} to contrast with: give one token")


def subject_of(
    model: Model, source: Any, target: str | None, baseline: str, settings: Mapping[str, Any]
) -> Subject:
    """What is to be explained of a model, by a view of its network: other threads may use that."""
    if target is None:
        target = _own(model, source, settings)
    network: Any = view_of(model.network).eval()
    if isinstance(model, SpeechTransducerModel):
        raise ModelError(
            "nothing is attributed for a transducer: a token has no single step that predicts it"
        )
    if isinstance(model, Transducer | SpeechModel):
        return _of_transducer(model, network, source, target, baseline, settings)
    if isinstance(model, LanguageModel):
        return _of_language_model(model, network, source, target, baseline)
    if isinstance(model, Tagger):
        return _of_tagger(model, network, source, target, baseline)
    if isinstance(model, Classifier):
        return _of_classifier(model, network, source, target, baseline, settings)
    raise ModelError(f"nothing is attributed for a model of task {model.recipe.task}")


def _own(model: Model, source: Any, settings: Mapping[str, Any]) -> str:
    """What the model itself makes of a source."""
    (output,) = model.run([source], **settings)
    if output.failed or not (output.tokens or output.ids):
        raise ModelError(output.warning or "there is no output to explain: the source is empty")
    if isinstance(model, LanguageModel):
        return output.text[len(source) :]
    return output.text


def _of_transducer(
    model: Any,
    network: Any,
    source: Any,
    target: str,
    baseline: str,
    settings: Mapping[str, Any],
) -> Subject:
    context = NO_CONTEXT
    if isinstance(model, SpeechModel):
        ids, times, context = _samples_of(model, source, settings)
        pieces: list[str] = []
        read_S = torch.as_tensor(ids)
    else:
        (ids,), warnings = model._encode([source])
        if not ids or warnings:
            raise ModelError(warnings.get(0) or "the source is empty: there is nothing to explain")
        times, pieces = [], model._pieces(source, ids)
        read_S = torch.tensor([*ids, END])
    targets = model.target_tokens.encode_batch([target])
    (written,) = model._copied_targets([target], targets, [source], [ids])
    forward, head = forward_and_head(network)
    read_1T = torch.tensor([[BEGIN, *written]]).to(model.device)
    read_1S = read_S[None].to(model.device)
    lengths_1 = torch.tensor([read_1S.shape[1]])

    def features(inputs: Sequence[Tensor]) -> Tensor:
        count = len(inputs[0])
        with (
            _with_output(network.front, inputs[0]),
            _with_output(network.decoder.embedding, inputs[1]),
        ):
            rows = (read_1S.expand(count, -1), lengths_1.expand(count), read_1T.expand(count, -1))
            return forward(*rows, **context.keywords)

    known_1S = read_1S if times else _known(network.front, read_1S)
    frontends = [(network.front, _read(network.front, known_1S, lengths_1, times, context))]
    embedding = network.decoder.embedding
    inputs, bases = _embedded([*frontends, (embedding, (_known(embedding, read_1T),))], baseline)
    spelt = partial(model._pieces_of_head, source=source, ids=ids)
    return Subject(
        names=["source", "prefix"],
        inputs=inputs,
        baselines=bases,
        features=features,
        head=head,
        wanted=[*written, END],
        tokens=model.target_tokens,
        target_tokens=spelt([*written, END]),
        source_tokens=pieces,
        prefix_tokens=spelt([BEGIN, *written]),
        times=times,
        copied=model._spelt(source, ids),
    )


def _of_language_model(
    model: LanguageModel, network: Any, source: str, target: str, baseline: str
) -> Subject:
    tokens = model.target_tokens
    prompt = tokens.encode_batch([source])[0] if source else []
    (following,) = model._encode_following([prompt], [target])
    text = [*prompt, *following]
    if not following or len(text) > model.window:
        raise ModelError(
            f"what is explained has 1 to {model.window} tokens with its prompt, which the model "
            f"reads at once, and this has {len(text)}"
        )
    read_1T = torch.tensor([[BEGIN, *text[:-1]]]).to(model.device)

    def features(inputs: Sequence[Tensor]) -> Tensor:
        with _with_output(network.decoder.embedding, inputs[0]):
            found: Tensor = network(read_1T.expand(len(inputs[0]), -1))
            return found

    inputs, bases = _embedded([(network.decoder.embedding, (read_1T,))], baseline)
    return Subject(
        names=["prefix"],
        inputs=inputs,
        baselines=bases,
        features=features,
        head=network.head,
        wanted=following,
        tokens=tokens,
        target_tokens=tokens.pieces(following),
        prefix_tokens=tokens.pieces([BEGIN, *text[:-1]]),
        first=len(prompt),
    )


def _of_classifier(
    model: Classifier,
    network: Any,
    source: Any,
    target: str,
    baseline: str,
    settings: Mapping[str, Any],
) -> Subject:
    times: list[float] = []
    context = NO_CONTEXT
    if isinstance(model, AudioClassifier):
        ids, times, context = _samples_of(model, source, settings)
    else:
        (row,), _ = model._encode([source])
        ids = row.tolist()
    if not len(ids):
        raise ModelError("the source is empty: there is nothing to explain")
    return _labelled(model, network, ids, times, [target], baseline, context)


def _of_tagger(model: Tagger, network: Any, source: str, target: str, baseline: str) -> Subject:
    (words,), tags = [source.split()], target.split()
    if not words or len(words) != len(tags):
        raise ModelError(f"there are {len(words)} words, but {len(tags)} tags for them")
    (ids,), context = model._rows([words])
    if context.words:
        network.front.add(context.words)  # of the view alone
    return _labelled(model, network, ids, [], tags, baseline, NO_CONTEXT)


def _labelled(
    model: Any,
    network: Any,
    ids: list[int],
    times: list[float],
    labels: list[str],
    baseline: str,
    context: CallContext,
) -> Subject:
    tokens = model.target_tokens
    names = tokens.pieces(range(len(SPECIALS), len(tokens)))
    for label in labels:
        if label not in names:
            raise ModelError(f"the model has no label {label!r}; it has {', '.join(names[:20])}")
    read_1S, lengths_1 = torch.as_tensor(ids)[None].to(model.device), torch.tensor([len(ids)])

    def features(inputs: Sequence[Tensor]) -> Tensor:
        count = len(inputs[0])
        with _with_output(network.front, inputs[0]):
            rows = (read_1S.expand(count, -1), lengths_1.expand(count))
            found: Tensor = network(*rows, **context.keywords)
            return found

    frontends = [(network.front, _read(network.front, read_1S, lengths_1, times, context))]
    inputs, bases = _embedded(frontends, baseline)
    return Subject(
        names=["source"],
        inputs=inputs,
        baselines=bases,
        features=features,
        head=network.head,
        wanted=[names.index(label) for label in labels],
        tokens=tokens,
        target_tokens=labels,
        source_tokens=[] if times else model.source_tokens.pieces(ids),
        times=times,
        specials=len(SPECIALS),
    )


def _read(
    frontend: Any, read_1S: Tensor, lengths_1: Tensor, times: Sequence[float], context: CallContext
) -> tuple[Any, ...]:
    """What a frontend is called with: that of audio with lengths and tags."""
    return (read_1S, lengths_1, frontend.tags_of(context)) if times else (read_1S,)


def _samples_of(
    model: AudioInputModel, source: Any, settings: Mapping[str, Any]
) -> tuple[list[int], list[float], CallContext]:
    """The samples of a recording, the second at which each state begins, and its tags."""
    (recording,) = model.recordings.split([source], settings.get("rate"), settings.get("tags", ()))
    ((wave, remark, _),) = model.recordings.waves_of([recording.source])
    if recording.error or wave is None:
        raise DataError(recording.error or remark)
    frontend = model.network.front
    times = [recording.start + frontend.seconds_of(n) for n in range(frontend.states_of(len(wave)))]
    context = (
        NO_CONTEXT if model.recordings.settings.prompt else model.context_of(Call(recording.tags))
    )
    return cast("list[int]", wave), times, context


# --------------------------------------------------------------------------------- embeddings


def _known(front: Any, ids_BT: Tensor) -> Tensor:
    """Ids as their table has them; those beyond it are of tokens that are copied."""
    return ids_BT.masked_fill(ids_BT >= front.table.num_embeddings, UNKNOWN)


def _embedded(
    frontends: Sequence[tuple[nn.Module, tuple[Any, ...]]], baseline: str
) -> tuple[list[Tensor], ...]:
    """What frontends give for tokens, and what for a baseline at the same positions."""
    inputs, bases = [], []
    with torch.no_grad():
        for frontend, read in frontends:
            inputs.append(_vectors(frontend(*read)).clone())
            if baseline == "unknown" and len(read) == 1:
                special = (read[0] == BEGIN) | (read[0] == END)
                unknown = read[0].masked_fill(~special, UNKNOWN)
                bases.append(_vectors(frontend(unknown)).clone())
                continue
            with _without_tokens(frontend, baseline):
                bases.append(_vectors(frontend(*read)).clone())
    return inputs, bases


def _vectors(output: Any) -> Tensor:
    """The frontend of audio gives their number too."""
    found = output[0] if isinstance(output, tuple) else output
    assert isinstance(found, Tensor)
    return found


@contextmanager
def _without_tokens(frontend: nn.Module, baseline: str) -> Iterator[None]:
    """Within, what a frontend knows of tokens is zero, or the mean of its table of embeddings, and
    of audio the features are zero, which is their mean; positions stay."""

    def silence(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (torch.zeros_like(inputs[0]), *inputs[1:])

    def zero(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if baseline == "mean" and isinstance(module, nn.Embedding):
            return module.weight.mean(dim=0).expand_as(output)
        return torch.zeros_like(output)

    with ExitStack() as held:
        for name, module in frontend.named_children():
            if name == "subsampling":
                held.callback(module.register_forward_pre_hook(silence).remove)
            if name in FROM_TOKENS:
                held.callback(module.register_forward_hook(zero).remove)
        yield


@contextmanager
def _with_output(frontend: nn.Module, x_NPD: Tensor) -> Iterator[None]:
    """Within, a frontend gives these vectors, whatever it reads."""

    def replaced(module: nn.Module, inputs: Any, output: Any) -> Any:
        return (x_NPD, *output[1:]) if isinstance(output, tuple) else x_NPD

    hook = frontend.register_forward_hook(replaced)
    try:
        yield
    finally:
        hook.remove()
