"""Several teachers teach what their ensemble says."""

from __future__ import annotations

import torch

from transduce.data.batches.batch import Batch
from transduce.models import RecurrentLanguageModel
from transduce.recipe import Train
from transduce.training.distillation import Distillation


def test_several_teachers_teach_the_mean_of_their_distributions() -> None:
    torch.manual_seed(1)
    networks = [RecurrentLanguageModel(9, width=8, layers=1, dropout=0.0) for _ in range(3)]
    student, *teachers = networks
    target_BT = torch.tensor([[2, 4, 5, 6, 3], [2, 7, 8, 3, 0]])
    nothing = torch.zeros(2, 0, dtype=torch.long)
    lengths = torch.tensor([4, 3])
    batch = Batch(nothing, torch.zeros(2), target_BT, lengths, [1, 2], [0, 1], 7, 0.0)
    weight, temperature = 0.7, 2.0
    settings = Train.model_validate(
        {
            "label_smoothing": 0.0,
            "teacher": {"model": ["a", "b"], "weight": weight, "temperature": temperature},
        }
    )
    loss = Distillation(student, teachers, settings)(batch)
    torch.autograd.backward([loss.total])
    found = [weight.grad.clone() for weight in student.parameters() if weight.grad is not None]

    student.zero_grad()
    read_BT, wanted_BT = target_BT[:, :-1], target_BT[:, 1:]
    logits = [one.head(one(read_BT)) for one in networks]
    with torch.no_grad():
        mean = sum((each / temperature).softmax(-1) for each in logits[1:]) / 2
    own = (logits[0] / temperature).log_softmax(-1)
    divergence = (mean * (mean.log() - own)).sum(-1) * temperature**2
    entropy = -logits[0].log_softmax(-1).gather(-1, wanted_BT[..., None])[..., 0]
    counted = wanted_BT != 0
    (((1 - weight) * entropy + weight * divergence) * counted).sum().backward()
    expected = [weight.grad for weight in student.parameters() if weight.grad is not None]
    assert len(found) == len(expected) > 2
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
