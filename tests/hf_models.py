"""Tiny encoder-decoders of transformers with random weights, and tokenizers learned on a few lines:
folders as those that are downloaded."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch

TEXTS = [
    "A dog runs over the green grass.",
    "Two men play football in the park.",
    "Ein Hund rennt über das grüne Gras.",
    "Zwei Männer spielen Fußball im Park.",
    "The little girl climbs into a wooden playhouse.",
    "كلب يجري على العشب الأخضر.",
    "一只狗在绿色的草地上奔跑。",
]
SIZES = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 64,
}


def learn_sentencepiece(
    path: Path, kind: str, size: int, texts: list[str] | None = None, rules: str = "nmt_nfkc"
) -> None:
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts or TEXTS),
        model_writer=written,
        vocab_size=size,
        model_type=kind,
        normalization_rule_name=rules,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
    )
    path.write_bytes(written.getvalue())


def pieces_of(path: Path) -> list[tuple[str, float]]:
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [(model.id_to_piece(n), model.get_score(n)) for n in range(3, len(model))]


def byte_level(folder: Path, specials: list[str]) -> tuple[dict[str, int], list[Any]]:
    from tokenizers import ByteLevelBPETokenizer

    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(TEXTS, vocab_size=330, special_tokens=specials)
    model = json.loads(learned._tokenizer.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def save(folder: Path, network: Any, tokenizer: Any) -> None:
    """With weights that tell every part from every other."""
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "embed_positions" in name and not isinstance_learned(network):
                continue
            parameter.normal_(std=0.3)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1.0)
        if hasattr(network, "final_logits_bias"):
            network.final_logits_bias.normal_(std=0.3)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def isinstance_learned(network: Any) -> bool:
    return type(network).__name__.startswith(("Bart", "MBart", "Blenderbot"))


def marian(folder: Path) -> None:
    from transformers import MarianConfig, MarianMTModel, MarianTokenizer

    files = [folder / "source.spm", folder / "target.spm"]
    learn_sentencepiece(files[0], "unigram", 70, TEXTS[:2] * 3)
    learn_sentencepiece(files[1], "unigram", 80, TEXTS[2:4] * 3)
    names = dict.fromkeys(piece for file in files for piece, _ in pieces_of(file))
    listed = ["</s>", "<unk>", *list(names)[:-2], ">>deu<<", "<pad>"]  # two pieces are missing
    vocabulary = {name: number for number, name in enumerate(listed)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = MarianTokenizer(
        source_spm=str(files[0]), target_spm=str(files[1]), vocab=str(folder / "vocab.json")
    )
    pad = len(listed) - 1
    config = MarianConfig(
        **SIZES,
        vocab_size=len(listed),
        activation_function="swish",
        scale_embedding=True,
        pad_token_id=pad,
        eos_token_id=0,
        bos_token_id=0,
        decoder_start_token_id=pad,
        forced_eos_token_id=None,
        num_beams=1,
    )
    save(folder, MarianMTModel(config), tokenizer)


def m2m100(folder: Path) -> None:
    from transformers import M2M100Config, M2M100ForConditionalGeneration, M2M100Tokenizer

    model = folder / "learned.model"
    learn_sentencepiece(model, "bpe", 130)
    listed = ["<s>", "<pad>", "</s>", "<unk>", *(piece for piece, _ in pieces_of(model))]
    vocabulary = folder / "words.json"
    vocabulary.write_text(json.dumps({name: number for number, name in enumerate(listed)}))
    tokenizer = M2M100Tokenizer(str(vocabulary), str(model))
    config = M2M100Config(
        **SIZES,
        vocab_size=len(listed) + 100 + 8,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=2,
    )
    save(folder, M2M100ForConditionalGeneration(config), tokenizer)
    model.unlink()
    vocabulary.unlink()


def nllb(folder: Path) -> None:
    from transformers import M2M100Config, M2M100ForConditionalGeneration, NllbTokenizer

    from transduce.data.tokens.sentencepiece import _merges, read_sentencepiece

    model = folder / "learned.model"
    learn_sentencepiece(model, "bpe", 130)
    read = read_sentencepiece(model)
    listed = ["<s>", "<pad>", "</s>", "<unk>", *read.pieces]
    vocabulary = {name: number for number, name in enumerate(listed)}
    merges = [tuple(pair) for pair in _merges(read.pieces)]
    tokenizer = NllbTokenizer(vocab=vocabulary, merges=merges)
    config = M2M100Config(
        **SIZES,
        vocab_size=len(tokenizer) + 2,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=2,
    )
    save(folder, M2M100ForConditionalGeneration(config), tokenizer)
    model.unlink()


def mbart(folder: Path) -> None:
    from transformers import MBart50Tokenizer, MBartConfig, MBartForConditionalGeneration

    model = folder / "learned.model"
    learn_sentencepiece(model, "unigram", 120)
    listed = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *pieces_of(model)]
    tokenizer = MBart50Tokenizer(vocab=listed)
    config = MBartConfig(
        **SIZES,
        vocab_size=len(tokenizer),
        activation_function="gelu",
        scale_embedding=True,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
    )
    save(folder, MBartForConditionalGeneration(config), tokenizer)
    model.unlink()


def bart(folder: Path) -> None:
    from transformers import BartConfig, BartForConditionalGeneration, BartTokenizer

    vocabulary, merges = byte_level(folder, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer = BartTokenizer(vocab=vocabulary, merges=merges)
    config = BartConfig(
        **SIZES,
        vocab_size=len(tokenizer),
        activation_function="gelu",
        scale_embedding=False,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_bos_token_id=0,
        forced_eos_token_id=None,
    )
    save(folder, BartForConditionalGeneration(config), tokenizer)


def blenderbot(folder: Path) -> None:
    from tokenizers.processors import TemplateProcessing
    from transformers import (
        BlenderbotConfig,
        BlenderbotForConditionalGeneration,
        BlenderbotTokenizer,
    )

    vocabulary, merges = byte_level(folder, ["<pad>", "<s>", "</s>", "<unk>", "<mask>"])
    tokenizer = BlenderbotTokenizer(vocab=vocabulary, merges=merges)
    ending = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    tokenizer._tokenizer.post_processor = ending  # as the files on the hub have it
    config = BlenderbotConfig(
        **SIZES,
        vocab_size=len(tokenizer),
        activation_function="gelu",
        scale_embedding=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        encoder_no_repeat_ngram_size=0,
        forced_eos_token_id=None,
    )
    save(folder, BlenderbotForConditionalGeneration(config), tokenizer)


def pegasus(folder: Path) -> None:
    from transformers import PegasusConfig, PegasusForConditionalGeneration, PegasusTokenizer

    model = folder / "learned.model"
    learn_sentencepiece(model, "unigram", 120)
    masks = [("<mask_1>", 0.0), ("<mask_2>", 0.0), *((f"<unk_{n}>", 0.0) for n in range(2, 103))]
    listed = [("<pad>", 0.0), ("</s>", 0.0), *masks, ("<unk>", 0.0), *pieces_of(model)]
    tokenizer = PegasusTokenizer(vocab=listed)
    config = PegasusConfig(
        **SIZES,
        vocab_size=len(tokenizer),
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
    )
    save(folder, PegasusForConditionalGeneration(config), tokenizer)
    model.unlink()


MODELS = {
    "marian": (marian, None),
    "pegasus": (pegasus, None),
    "blenderbot": (blenderbot, None),
    "bart": (bart, None),
    "mbart": (mbart, ("en_XX", "de_DE")),
    "m2m100": (m2m100, ("en", "de")),
    "nllb": (nllb, ("eng_Latn", "deu_Latn")),
}
