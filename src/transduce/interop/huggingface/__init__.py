"""Models of Hugging Face's transformers: their classes, the names of their weights, export."""
