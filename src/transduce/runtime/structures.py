"""What the C library and Python share, as ctypes: structures, kinds and limits of the files in c/.

The library has the size of each structure and the offset of each of its fields as well; they are
compared when it is loaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_int64
from enum import IntEnum

Address = ctypes.c_void_p


# ------------------------------------------------------------------------------ native.h: products


class Kernel(IntEnum):
    """SIMD kernels of int8 products; all give the same result, bit for bit."""

    BEST = -1
    PLAIN = 0
    NEON = 1
    AVX2 = 2
    VNNI = 3
    AMX = 4
    SIMD128 = 5
    """WebAssembly's; the next one is for x86."""
    SIMD128_X86 = 6


class Epilogue(IntEnum):
    """The operation fused after the product."""

    NOTHING = 0
    RELU = 1
    ADD = 2


class Weight(ctypes.Structure):
    _fields_ = (
        ("levels", Address),
        ("totals", Address),
        ("scale", Address),
        ("bias", Address),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("numbers", Address),
        ("threads", c_int64),
    )


# -------------------------------------------------------------- parts.h and stack.c: Transformers

FUNCTIONS = ("relu", "gelu", "silu", "gelu_tanh")  # activation functions
KINDS = ("self_attention", "cross_attention", "feed_forward")


class Norm(ctypes.Structure):
    _fields_ = (("weight", Address), ("bias", Address), ("epsilon", c_float))


class Sublayer(ctypes.Structure):
    _fields_ = (
        ("kind", c_int32),
        ("norm_before", c_int32),
        ("activation", c_int32),
        ("gated", c_int32),
        ("layer", c_int64),
        ("norm", Norm),
        ("into", Weight),
        ("out_of", Weight),
    )


class Stack(ctypes.Structure):
    _fields_ = (
        ("sublayer", ctypes.POINTER(Sublayer)),
        ("sublayers", c_int64),
        ("layers", c_int64),
        ("width", c_int64),
        ("head_width", c_int64),
        ("last", Norm),
        ("table", Address),
        ("tokens", c_int64),
        ("table_scale", c_float),
        ("kernel", c_int32),
        ("by_distance", Address),
        ("reach", c_int64),
    )


class Step(ctypes.Structure):
    _fields_ = (
        ("rows", c_int64),
        ("step", c_int64),
        ("steps", Address),
        ("slots", Address),
        ("tokens", Address),
        ("embedded", Address),
        ("position", Address),
        ("rotary", Address),
        ("past", Address),
        ("max_rows", c_int64),
        ("origins", Address),
        ("max_steps", c_int64),
        ("memory", Address),
        ("memory_length", c_int64),
        ("lengths", Address),
        ("head", Weight),
        ("log_probs", Address),
        ("attention", Address),
        ("self_attention", Address),
        ("workspace", Address),
        ("refused", c_int64),
    )


class Sources(ctypes.Structure):
    _fields_ = (
        ("sources", c_int64),
        ("longest", c_int64),
        ("tokens", Address),
        ("lengths", Address),
        ("embedded", Address),
        ("positions", Address),
        ("rotary", Address),
        ("states", Address),
        ("attention", Address),
        ("workspace", Address),
        ("refused", c_int64),
    )


# ----------------------------------------------------------------- recurrent.c: recurrent networks

CELLS = ("elman", "gru", "lstm", "lstm-peephole")
NO_ATTENTION, DOT, ADDITIVE, LOCATION = range(4)


class Cell(ctypes.Structure):
    _fields_ = (("from_input", Weight), ("from_state", Weight), ("peepholes", Address))


class Recurrent(ctypes.Structure):
    _fields_ = (
        ("cell", ctypes.POINTER(Cell)),
        ("layers", c_int64),
        ("directions", c_int64),
        ("width", c_int64),
        ("kind", c_int32),
        ("skip", c_int32),
        ("sum", Weight),
        ("kernel", c_int32),
    )


class Sequences(ctypes.Structure):
    _fields_ = (
        ("sequences", c_int64),
        ("longest", c_int64),
        ("x", Address),
        ("lengths", Address),
        ("outputs", Address),
        ("h", Address),
        ("c", Address),
        ("workspace", Address),
    )


class Attention(ctypes.Structure):
    _fields_ = (
        ("score", c_int32),
        ("normalised", c_int32),
        ("scale", c_float),
        ("keys", Weight),
        ("query", Weight),
        ("energy", Address),
    )


class RecurrentDecoder(ctypes.Structure):
    _fields_ = (
        ("stack", ctypes.POINTER(Recurrent)),
        ("context_in_input", c_int32),
        ("context_in_output", c_int32),
        ("source", Attention),
        ("tags", Attention),
        ("tag_values", Weight),
        ("tag_sum", Weight),
        ("readout", Weight),
        ("bridge", Weight),
        ("table", Address),
        ("vocabulary", c_int64),
        ("table_scale", c_float),
        ("kernel", c_int32),
    )


class RecurrentStart(ctypes.Structure):
    _fields_ = (
        ("sources", c_int64),
        ("longest", c_int64),
        ("states", Address),
        ("lengths", Address),
        ("keys", Address),
        ("start", Address),
        ("tags", Address),
        ("most_tags", c_int64),
        ("embedded_tags", Address),
        ("tag_keys", Address),
        ("tag_values", Address),
        ("tag_input", Address),
        ("workspace", Address),
    )


class RecurrentStep(ctypes.Structure):
    _fields_ = (
        ("rows", c_int64),
        ("tokens", Address),
        ("h", Address),
        ("c", Address),
        ("query", Address),
        ("source", Address),
        ("keys", Address),
        ("values", Address),
        ("longest", c_int64),
        ("lengths", Address),
        ("tags", Address),
        ("most_tags", c_int64),
        ("tag_keys", Address),
        ("tag_values", Address),
        ("tag_input", Address),
        ("head", Weight),
        ("log_probs", Address),
        ("attention", Address),
        ("tag_attention", Address),
        ("workspace", Address),
    )


# --------------------------------------------------------------- copying.c: the pointer-generator


class Copying(ctypes.Structure):
    _fields_ = (
        ("rows", c_int64),
        ("heads", c_int64),
        ("longest", c_int64),
        ("head", Weight),
        ("gate", Weight),
        ("features", Address),
        ("projected", Address),
        ("attention", Address),
        ("source", Address),
        ("lengths", Address),
        ("copies", Address),
        ("log_probs", Address),
        ("gates", Address),
        ("copied", Address),
        ("workspace", Address),
        ("kernel", c_int32),
    )


# -------------------------------------------------------------------- slots.c: continuous batching

MAX_BEAM = 64
NUMBERS = (
    *("slots", "beam", "nbest", "target", "vocabulary", "pad", "begin", "end"),
    *("min_length", "max_finished"),
)
ARRAYS = (
    *("penalties", "open", "steps", "limits", "finished", "reached", "last", "written"),
    *("scores", "totals", "found", "row", "row_step", "row_token", "best", "best_token", "old"),
)


class Slots(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in NUMBERS),
        *((name, Address) for name in ARRAYS),
    )


# ---------------------------------------------------------------------------------------- layouts

#: The tables of sizes and offsets in the library, and the structures that each describes.
LAYOUTS: dict[str, tuple[type[ctypes.Structure], ...]] = {
    "layout": (Weight, Norm, Sublayer, Stack, Step, Sources),
    "recurrent_layout": (
        Cell,
        Recurrent,
        Sequences,
        Attention,
        RecurrentDecoder,
        RecurrentStart,
        RecurrentStep,
    ),
    "copying_layout": (Copying,),
    "slots_layout": (Slots,),
}


def layout(structures: Sequence[type[ctypes.Structure]]) -> list[int]:
    """The size of each structure and the offset of each of its fields."""
    return [
        number
        for structure in structures
        for number in (
            ctypes.sizeof(structure),
            *(getattr(structure, field[0]).offset for field in structure._fields_),
        )
    ]
