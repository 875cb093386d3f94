"""Speech: log-mel features, feature normalisation, SpecAugment, speed perturbation, subsampling."""
