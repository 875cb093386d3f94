"""Features of letters, beside torch's own LSTM and a sum by hand; padding changes nothing."""

from __future__ import annotations

import pytest
import torch

from transduce.nn.embedding.characters import LETTERS, ConvolvedLetters, RecurrentLetters

WORDS_NC = torch.tensor([[3, 4, 5, 0], [6, 0, 0, 0], [0, 0, 0, 0], [2, 2, 7, 8]])


def test_recurrent_letters_are_what_lstms_hold_at_the_end() -> None:
    torch.manual_seed(1)
    letters = RecurrentLetters(9, 6).double()
    found_ND = letters(WORDS_NC)
    forward, backward = letters.recurrent.cells
    for row, word in enumerate(WORDS_NC.tolist()):
        real = [letter for letter in word if letter]
        if not real:
            assert found_ND[row].eq(0).all()
            continue
        x_1CD = letters.table(torch.tensor([real]))
        ends = []
        for cell, sequence in ((forward, x_1CD), (backward, x_1CD.flip(1))):
            oracle = torch.nn.LSTM(6, 3, batch_first=True).double()
            oracle.load_state_dict(cell.kernel.state_dict())
            ends.append(oracle(sequence)[1][0][0, 0])
        torch.testing.assert_close(found_ND[row], torch.cat(ends))


def test_convolved_letters_are_the_greatest_over_spans() -> None:
    torch.manual_seed(2)
    letters = ConvolvedLetters(9, 4).double()
    found_ND = letters(WORDS_NC)
    weight_DES, bias_D = letters.convolution.weight, letters.convolution.bias
    nothing_E = torch.zeros(4, dtype=torch.float64)
    for row, word in enumerate(WORDS_NC.tolist()):
        real = [letters.table.weight[letter] for letter in word if letter]
        wider = [nothing_E, *real, nothing_E]
        features = [
            torch.relu(
                torch.einsum("des,se->d", weight_DES, torch.stack(wider[at : at + 3])) + bias_D
            )
            for at in range(len(real))
        ]
        expected_D = torch.stack(features).amax(dim=0) if features else nothing_E
        torch.testing.assert_close(found_ND[row], expected_D)


@pytest.mark.parametrize("kind", LETTERS)
def test_padding_changes_nothing(kind: str) -> None:
    torch.manual_seed(3)
    letters = LETTERS[kind](9, 4)
    wider_NC = torch.nn.functional.pad(WORDS_NC, (0, 3))
    torch.testing.assert_close(letters(WORDS_NC), letters(wider_NC))
