"""The description of LibreTranslate's endpoints, as OpenAPI (Swagger 2.0)."""

from __future__ import annotations

from typing import Any

import transduce

TEXT, KEY = {"type": "string"}, ("api_key", False, "an API key")
Field = tuple[str, bool, str]
ENDPOINTS: dict[str, tuple[str, str, tuple[Field, ...]]] = {
    "/translate": (
        "post",
        "Translate a text, or a list of texts (as JSON)",
        (
            ("q", True, "the text, or a list of texts"),
            ("source", True, "code of the source language, or auto"),
            ("target", True, "code of the target language"),
            ("format", False, "text or html"),
            ("alternatives", False, "how many further translations"),
            KEY,
        ),
    ),
    "/detect": ("post", "Detect the language of a text", (("q", True, "the text"), KEY)),
    "/languages": ("get", "List the languages", ()),
    "/translate_file": (
        "post",
        "Translate a file",
        (
            ("file", True, "the file"),
            ("source", True, "code of the source language, or auto"),
            ("target", True, "code of the target language"),
            KEY,
        ),
    ),
    "/suggest": ("post", "Suggest a better translation; always refused", ()),
    "/frontend/settings": ("get", "Limits and defaults", ()),
    "/health": ("get", "Whether the server is alive", ()),
}
ERRORS = {
    "400": "a parameter cannot be used",
    "403": "the API key is wrong",
    "429": "too many requests",
}


def specification() -> dict[str, Any]:
    paths = {}
    for path, (method, about, fields) in ENDPOINTS.items():
        parameters = [
            {
                "in": "formData",
                "name": name,
                "required": required,
                "description": text,
                "type": "file" if name == "file" else "string",
            }
            for name, required, text in fields
        ]
        answers = {"200": {"description": "the result"}}
        if fields:
            answers |= {code: {"description": text} for code, text in ERRORS.items()}
        paths[path] = {method: {"summary": about, "parameters": parameters, "responses": answers}}
    return {
        "swagger": "2.0",
        "info": {"title": "transduce", "version": transduce.__version__},
        "paths": paths,
    }
