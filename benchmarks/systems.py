"""What the speed benchmarks compare: our training step and two peers', built alike.

All three are Transformers of the same shape with one table for source, target and output, trained
with dropout 0.1 (of embeddings and of each sublayer's output, nowhere else), label smoothing 0.1,
gradient clipping and a fused AdamW, in the same precision, on the same batches. Peers get the
settings that are fastest for them; where a usual setting is slower, the code says so.

Differences that stay: our output layer has a bias (as many numbers as the vocabulary), Marian's is
fixed and torch's has none; Marian norms after each sublayer and has no last norm, the others norm
before; Marian keeps its sinusoids among its (fixed) parameters.
"""

from __future__ import annotations

import importlib.util
import math
import platform
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce import recipe
from transduce.data.batches.batch import Batch
from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.models.build import Vocabulary, build
from transduce.nn.checkpointing import set_checkpointing
from transduce.training.optimizer import build_optimizer, set_learning_rate
from transduce.training.update import build_update

DROPOUT, SMOOTHING, CLIP, RATE = 0.1, 0.1, 1.0, 3e-4
SETTINGS = recipe.Train(lr=RATE, label_smoothing=SMOOTHING, clip_norm=CLIP)
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Size:
    """A Transformer's shape: as many layers in the encoder as in the decoder."""

    name: str
    layers: int
    width: int
    heads: int
    feed_forward: int
    vocabulary: int


SIZES = {
    size.name: size
    for size in (
        Size("base", 6, 512, 8, 2048, 32_000),
        Size("small", 3, 256, 4, 1024, 8_000),
        Size("tiny", 1, 32, 2, 64, 300),
    )
}


@dataclass(frozen=True)
class Spec:
    """Whose step, run how: eager, compiled, or (on a GPU) compiled and replayed as CUDA graphs."""

    system: str
    mode: str
    precision: str

    @property
    def name(self) -> str:
        return f"{self.system} {self.mode} {self.precision}"


@dataclass
class System:
    """A model with its optimizer; `step` is one update and gives the mean loss, not waited for."""

    parameters: int
    prepare: Callable[[Batch], Any]
    step: Callable[[Any], Tensor]


def peers(without: str) -> list[str]:
    """The peers to compare with, but for those named in `without`, with commas between them.

    Ends the program where one is not installed: a table that lacks a row looks like a whole one.
    """
    chosen = [name for name in ("marian", "torch") if name not in without.split(",")]
    if "marian" in chosen and importlib.util.find_spec("transformers") is None:
        end({"marian": "transformers is not installed"})
    return chosen


def end(missing: Mapping[str, str]) -> None:
    """End with a failure where something was not measured; `missing`: what, and why."""
    if missing:
        reported = "; ".join(f"{name}: {why}" for name, why in missing.items())
        sys.exit(f"Not measured: {reported}. Leave out what you do not need with --without NAME.")


def build_system(
    spec: Spec, size: Size, device: torch.device, longest: int, dynamic: bool = False
) -> System:
    """`longest` is how many positions are wanted; `dynamic`: batches differ in shape."""
    torch.manual_seed(1)
    if spec.system == "ours":
        return ours(size, device, PRECISIONS[spec.precision])
    makers = {"marian": marian, "torch": torch_transformer}
    model = makers[spec.system](size, longest).to(device).train()
    return _peer(model, spec, device, dynamic)


# ----------------------------------------------------------------------------------------- ours


def ours(
    size: Size,
    device: torch.device,
    precision: torch.dtype,
    chosen: recipe.Train = SETTINGS,
) -> System:
    """What `transduce train` does for each update, and nothing else."""
    part = {"layers": size.layers, "heads": size.heads, "feed_forward": size.feed_forward}
    settings = recipe.Model(
        width=size.width,
        dropout=DROPOUT,
        tie_embeddings="all",
        encoder=recipe.TransformerEncoder(**part),
        decoder=recipe.TransformerDecoder(**part),
    )
    network = build(settings, Vocabulary(size.vocabulary, size.vocabulary)).to(device).train()
    set_checkpointing(network, chosen.checkpoint_activations)
    optimizer = build_optimizer(network, chosen)
    update = build_update(network, optimizer, chosen, precision)

    def step(batch: Batch) -> Tensor:
        set_learning_rate(optimizer, RATE)
        loss, norm, *_ = update([batch])
        if device.type == "cpu" and not math.isfinite(float(norm)):
            raise FloatingPointError("the gradient is no longer finite")
        update.apply()
        return loss / batch.target_tokens

    return System(_trained(network), lambda batch: batch, step)


# ---------------------------------------------------------------------------------------- peers


class Logits(nn.Module):
    """A peer: tokens in, logits out; `visible_BS` is None where no source is padded.

    The target's padding needs no mask: it comes last, so causality hides it from all that counts.
    """

    def forward(self, source_BS: Tensor, target_BT: Tensor, visible_BS: Tensor | None) -> Tensor:
        raise NotImplementedError


class Marian(Logits):
    """Hugging Face's MarianMTModel.

    Its attention is their sdpa function under a name of its own, for which the library makes no
    masks: the usual `sdpa` looks for padding in the target's mask (waiting for the device) and,
    compiled, writes the causal mask out, which keeps torch from its fastest kernels.
    """

    def __init__(self, size: Size, longest: int) -> None:
        super().__init__()
        from transformers import AttentionInterface, MarianConfig, MarianMTModel
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        AttentionInterface.register("sdpa_without_masks", sdpa_attention_forward)
        sides: dict[str, Any] = {}
        for side in ("encoder", "decoder"):
            sides[f"{side}_layers"] = size.layers
            sides[f"{side}_attention_heads"] = size.heads
            sides[f"{side}_ffn_dim"] = size.feed_forward
        config = MarianConfig(
            vocab_size=size.vocabulary,
            d_model=size.width,
            max_position_embeddings=longest,
            activation_function="relu",
            dropout=DROPOUT,
            attention_dropout=0.0,
            activation_dropout=0.0,
            scale_embedding=True,
            share_encoder_decoder_embeddings=True,
            tie_word_embeddings=True,
            use_cache=False,
            pad_token_id=PAD,
            eos_token_id=END,
            forced_eos_token_id=END,
            decoder_start_token_id=BEGIN,
            init_std=size.width**-0.5,
            **sides,
        )
        config._attn_implementation = "sdpa_without_masks"
        self.model = MarianMTModel(config)

    def forward(self, source_BS: Tensor, target_BT: Tensor, visible_BS: Tensor | None) -> Tensor:
        visible_B11S = None if visible_BS is None else visible_BS[:, None, None, :]
        logits_BTV: Tensor = self.model(
            input_ids=source_BS,
            attention_mask=visible_B11S,
            decoder_input_ids=target_BT,
            use_cache=False,
        ).logits
        return logits_BTV


class TorchTransformer(Logits):
    """torch.nn.Transformer with a table, sinusoids, and the table again as output layer."""

    causal_TT: Tensor
    positions_TD: Tensor

    def __init__(self, size: Size, longest: int) -> None:
        super().__init__()
        self.table = nn.Embedding(size.vocabulary, size.width)
        nn.init.normal_(self.table.weight, std=size.width**-0.5)
        self.scale = math.sqrt(size.width)
        self.transformer = nn.Transformer(
            size.width,
            size.heads,
            size.layers,
            size.layers,
            size.feed_forward,
            dropout=DROPOUT,
            batch_first=True,
            norm_first=True,
        )
        # Its one setting for dropout also drops attention weights and inside the feed-forward
        # layers, which the others do not do, and which is slow.
        for layer in [*self.transformer.encoder.layers, *self.transformer.decoder.layers]:
            layer.dropout.p = 0.0
            layer.self_attn.dropout = 0.0
            if hasattr(layer, "multihead_attn"):
                layer.multihead_attn.dropout = 0.0
        self.dropout = nn.Dropout(DROPOUT)
        rates = torch.exp(torch.arange(0, size.width, 2) * (-math.log(10_000.0) / size.width))
        angles = torch.outer(torch.arange(longest).float(), rates)
        positions_TD = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        self.register_buffer("positions_TD", positions_TD)
        # Asked for, but not read where `tgt_is_causal` is given and no target is masked: a written
        # out square would only cost memory.
        self.register_buffer("causal_TT", torch.zeros(1, 1).expand(longest, longest))

    def forward(self, source_BS: Tensor, target_BT: Tensor, visible_BS: Tensor | None) -> Tensor:
        T = target_BT.shape[1]
        hidden_BS = None if visible_BS is None else ~visible_BS
        features_BTD = self.transformer(
            self._embed(source_BS),
            self._embed(target_BT),
            tgt_mask=self.causal_TT[:T, :T],
            src_key_padding_mask=hidden_BS,
            memory_key_padding_mask=hidden_BS,
            tgt_is_causal=True,  # with it and no padding mask, torch takes its causal kernel
        )
        return F.linear(features_BTD, self.table.weight)

    def _embed(self, tokens_BT: Tensor) -> Tensor:
        x_BTD = self.table(tokens_BT) * self.scale + self.positions_TD[: tokens_BT.shape[1]]
        dropped: Tensor = self.dropout(x_BTD)
        return dropped


def marian(size: Size, longest: int) -> Logits:
    return Marian(size, longest)


def torch_transformer(size: Size, longest: int) -> Logits:
    return TorchTransformer(size, longest)


def _peer(model: Logits, spec: Spec, device: torch.device, dynamic: bool) -> System:
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters,
        lr=RATE,
        betas=SETTINGS.betas,
        weight_decay=SETTINGS.weight_decay,
        eps=1e-9,
        fused=True,
    )
    precision = PRECISIONS[spec.precision]
    half = precision != torch.float32

    def mean_loss(
        source_BS: Tensor, target_BT: Tensor, wanted_BT: Tensor, visible_BS: Tensor | None
    ) -> Tensor:
        with torch.autocast(device.type, dtype=precision, enabled=half):
            logits_BTV = model(source_BS, target_BT, visible_BS)
            return F.cross_entropy(
                logits_BTV.flatten(0, 1),
                wanted_BT.flatten(),
                ignore_index=PAD,
                label_smoothing=SMOOTHING,
            )

    compiled = spec.mode != "eager"
    if compiled:
        mode = "reduce-overhead" if spec.mode == "graphs" else None
        mean_loss = torch.compile(mean_loss, dynamic=dynamic, mode=mode)

    def prepare(batch: Batch) -> list[Tensor | None]:
        assert batch.target_BT is not None
        S = batch.source_BS.shape[1]
        visible_BS = torch.arange(S) < batch.source_lengths_B[:, None]
        # One graph for all batches of a compiled step; else no mask where there is no padding.
        masked = (compiled and dynamic) or not bool(visible_BS.all())
        inputs = [
            batch.source_BS,
            batch.target_BT[:, :-1].contiguous(),
            batch.target_BT[:, 1:].contiguous(),
            visible_BS if masked else None,
        ]
        pinned = device.type == "cuda"
        return [x.pin_memory() if pinned and x is not None else x for x in inputs]

    def step(inputs: list[Tensor | None]) -> Tensor:
        if spec.mode == "graphs":
            torch.compiler.cudagraph_mark_step_begin()
        moved = [None if x is None else x.to(device, non_blocking=True) for x in inputs]
        loss = mean_loss(*moved)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        # A replayed graph would overwrite it.
        return loss.detach().clone()

    return System(_trained(model), prepare, step)


def _trained(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


# -------------------------------------------------------------------------------- work and facts


def flops(size: Size, lengths: list[tuple[int, int]]) -> float:
    """Operations that one update on pairs of these (source, target) lengths needs.

    A product with a matrix of n numbers takes 2 n operations a token forwards and 4 n backwards.
    Matrices over the source: 4 D² + 2 D F in each encoder layer, and the 2 D² that make keys and
    values of the memory in each decoder layer. Over the target: 4 D² + 2 D² + 2 D F in each decoder
    layer, and D V in the output layer. Attention: 4 D operations forwards, twice that backwards,
    for each query and key, S² + T² + S T of them in each layer (what causality hides is counted,
    as is usual). Padding, dropout, norms and the softmax are not counted, whatever they cost.
    """
    D, inner = size.width, size.feed_forward
    over_source = size.layers * (4 * D * D + 2 * D * inner + 2 * D * D)
    over_target = size.layers * (6 * D * D + 2 * D * inner) + D * size.vocabulary
    source = sum(S for S, _ in lengths)
    target = sum(T for _, T in lengths)
    seen = sum(S * S + T * T + S * T for S, T in lengths)
    products = 6 * (over_source * source + over_target * target)
    return float(products + 3 * 4 * D * size.layers * seen)


def real_lengths(batch: Batch) -> list[tuple[int, int]]:
    """(source, target) lengths of a batch's pairs, END counted, padding not."""
    assert batch.target_lengths_B is not None
    pairs = zip(batch.source_lengths_B.tolist(), batch.target_lengths_B.tolist(), strict=True)
    return list(pairs)


def metadata(device: torch.device) -> dict[str, Any]:
    """What a figure measured here should be printed with."""
    found: dict[str, Any] = {
        "command": _command(),
        "hardware": hardware(device),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if importlib.util.find_spec("transformers") is not None:
        import transformers

        found["transformers"] = transformers.__version__
    return found


def _command() -> str:
    """As it was called, without the folders of this machine."""
    kept, skip = [], False
    for word in sys.argv[1:]:
        local = word.split("=")[0] in ("--data", "--out")
        if not skip and not local:
            kept.append(Path(word).name if Path(word).is_absolute() else word)
        skip = local and "=" not in word
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *kept])


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    model = platform.processor() or platform.machine()
    path = Path("/proc/cpuinfo")
    if path.exists():
        lines = path.read_text("utf-8").splitlines()
        named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        model = named[0] if named else model
    tiles = ", AMX" if has_tiles() else ""
    return f"{model}{tiles}, {torch.get_num_threads()} threads"


def has_tiles() -> bool:
    """Whether bfloat16 products are fast on this CPU."""
    return bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())
