"""What the numbers of an architecture must be; each function raises ValueError in one sentence."""

from __future__ import annotations

from collections.abc import Collection

from transduce.data.tokens.tokenizer import SPECIALS


def check_sizes(**sizes: int) -> None:
    """Every size is a whole number, 1 or more."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {size!r}.")


def check_vocabularies(**vocabularies: int) -> None:
    """A vocabulary has more tokens than the four specials."""
    check_sizes(**vocabularies)
    for name, size in vocabularies.items():
        if size <= len(SPECIALS):
            raise ValueError(
                f"{name} is {size}, but ids 0 to {len(SPECIALS) - 1} are the special tokens "
                f"{', '.join(SPECIALS)}: count them too, and at least one token more."
            )


def check_both_sides(source_vocabulary: int, target_vocabulary: int, tie_embeddings: str) -> None:
    """The vocabularies of an encoder-decoder, and whether they can share embeddings."""
    check_vocabularies(source_vocabulary=source_vocabulary, target_vocabulary=target_vocabulary)
    check_choice("tie_embeddings", tie_embeddings, ("all", "target", "none"))
    if tie_embeddings == "all" and source_vocabulary != target_vocabulary:
        raise ValueError(
            f'tie_embeddings is "all", which needs one vocabulary, but source_vocabulary is '
            f'{source_vocabulary} and target_vocabulary {target_vocabulary}: use "target".'
        )


def check_shares(**shares: float) -> None:
    """Dropout and the like: from 0 on, below 1."""
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, not {share!r}.")


def check_choice(name: str, value: str | None, choices: Collection[str | None]) -> None:
    """The value is one of few."""
    if value not in choices:
        named = ", ".join("None" if choice is None else f'"{choice}"' for choice in choices)
        raise ValueError(f"{name} must be one of {named}, not {value!r}.")


def check_width(width: int) -> None:
    """Positions and directions take half of the width."""
    check_sizes(width=width)
    if width % 2:
        raise ValueError(f"width is {width}; it must be even, as positions come in pairs.")


def check_heads(width: int, heads: int, positions: str, name: str = "heads") -> None:
    """Heads share the width evenly; rotary positions turn pairs within a head."""
    check_sizes(**{name: heads})
    if width % heads:
        raise ValueError(f"{name} is {heads}, which does not divide the width, {width}.")
    if positions == "rotary" and width // heads % 2:
        raise ValueError(
            f"{name} is {heads}, which leaves {width // heads} of the width, {width}, for each "
            f"head; rotary positions need an even number there."
        )


def check_odd(name: str, kernel: int) -> None:
    """A kernel that looks to both sides has a middle."""
    check_sizes(**{name: kernel})
    if kernel % 2 == 0:
        raise ValueError(f"{name} is {kernel}; it must be odd, to have a middle.")


def check_positions_width(width: int, positions: str, combine: str) -> None:
    """Positions that are concatenated take half of the width, in pairs."""
    check_choice("combine", combine, ("add", "concatenate"))
    if combine == "add":
        return
    if positions in ("rotary", "none"):
        raise ValueError(
            f'combine is "concatenate", but positions "{positions}" give no vectors to concatenate.'
        )
    if width % 4:
        raise ValueError(
            f'combine is "concatenate", which gives positions half of the width, {width}; that '
            f"half must be even."
        )
