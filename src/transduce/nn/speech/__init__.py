"""Speech: log-mel features, feature normalisation, SpecAugment, speed perturbation,
background noise, subsampling."""
