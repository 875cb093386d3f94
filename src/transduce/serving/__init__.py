"""The HTTP service: models, a queue that decodes in batches, protocols, metrics."""
