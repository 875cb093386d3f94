"""Other inference engines: export to ONNX and CTranslate2, parity checks, and running them."""
