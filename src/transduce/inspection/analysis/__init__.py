"""Analysis of what a model does: attention measured, attribution by gradients, word alignments."""

from transduce.decoding.word_alignment import word_attention
from transduce.inspection.analysis.alignment import (
    Gold,
    alignment_error_rate,
    from_pharaoh,
    links_of,
    symmetrize,
    to_pharaoh,
)
from transduce.inspection.analysis.attention import (
    Rollout,
    attention_confidence,
    attention_entropy,
    attention_rollout,
    coverage,
    diagonality,
    encoder_decoder_rollout,
    rollout,
)
from transduce.inspection.analysis.attribution import (
    erasure,
    gradient_norm,
    gradient_x_input,
    integrated_gradients,
)
from transduce.inspection.analysis.heads import Alignments, Head, HeadScore, align_words, best_heads
from transduce.inspection.analysis.model_attribution import Attribution, attribute

__all__ = [
    "Alignments",
    "Attribution",
    "Gold",
    "Head",
    "HeadScore",
    "Rollout",
    "align_words",
    "alignment_error_rate",
    "attention_confidence",
    "attention_entropy",
    "attention_rollout",
    "attribute",
    "best_heads",
    "coverage",
    "diagonality",
    "encoder_decoder_rollout",
    "erasure",
    "from_pharaoh",
    "gradient_norm",
    "gradient_x_input",
    "integrated_gradients",
    "links_of",
    "rollout",
    "symmetrize",
    "to_pharaoh",
    "word_attention",
]
