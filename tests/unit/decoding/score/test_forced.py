"""Teacher forcing: each target's log-probabilities, whatever is in its batch."""

from __future__ import annotations

import pytest
import torch

from tiny_models import tiny
from transduce.data.tokens.tokenizer import BEGIN, END
from transduce.decoding.score import forced, logits


@pytest.mark.parametrize("places", [8, 2048])
def test_every_token_and_end_and_no_padding(places: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forced, "CPU_PLACES", places)
    monkeypatch.setattr(logits, "AT_ONCE", 3)
    model = tiny()
    network = model.network.eval()
    sources = model.source_tokens.encode_batch(["a cup of tea", "tea", "iroh made tea"])
    targets = model.target_tokens.encode_batch(["tea", "iroh made tea", ""])
    with torch.no_grad():
        found = forced.log_probabilities(network, sources, targets)
        for source, target, values in zip(sources, targets, found, strict=True):
            source_1S = torch.tensor([[*source, END]])
            features_1TD = network(
                source_1S, torch.tensor([source_1S.shape[1]]), torch.tensor([[BEGIN, *target]])
            )
            log_probs_TV = network.head(features_1TD)[0].log_softmax(dim=-1)
            expected = [float(log_probs_TV[t, token]) for t, token in enumerate([*target, END])]
            assert values == pytest.approx(expected, abs=1e-5)
