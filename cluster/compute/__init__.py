"""One stage's arithmetic: weights, kernels, layers, KV cache, sampling. Needs torch."""
