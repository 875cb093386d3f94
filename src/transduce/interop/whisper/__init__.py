"""Whisper's weights and tokens, as Hugging Face and CTranslate2 have them and as we have them."""
