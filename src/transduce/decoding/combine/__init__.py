"""Several models in one search: ensembles, CTC, shallow fusion with an LM, reranking, MBR."""
