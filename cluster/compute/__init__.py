"""One stage's arithmetic: weights, kernels, layers, keys and values, sampling. Needs torch."""
