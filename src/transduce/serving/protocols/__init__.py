"""The protocols of other services: LibreTranslate, OpenAI, DeepL; each in its own words."""
