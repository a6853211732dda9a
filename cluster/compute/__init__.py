"""One stage's arithmetic: weights, kernels, layers, KV cache, sampling. Needs torch.

Modules:
    attention         Attention of packed rows over the slots that they belong to
    batch             The layout of one step's rows: the slot of each row, the positions that it attends to, and
                      its rotation
    bert              BERT's encoder and its relatives over packed rows: no padding, texts of any lengths side by
                      side
    block_files       Encrypted blocks of the KV cache on a node's disk, least recently used first to go
    compat            The compatibility path: any causal model of transformers, of which only one stage's layers
                      exist and run
    compat_attention  Attention of transformers' layers over our own key-value slots, called through its attention
                      interface
    compat_build      transformers' own model of a checkpoint, of which only one stage's weights exist
    compat_experts    Experts of transformers' mixture layers, called through its experts interface, with our
                      packed matrices
    decoder           The fast path: the decoder layers of one stage, over packed rows, and the cache that they
                      fill
    devices           The device that a node's process computes on: the machine's GPU if torch finds one
    embedder          Embedding models on one node: one vector for each text, as the model's sentence-transformers
                      files say
    feed_forward      The part of a layer that treats each row alone: a gated or plain MLP, or a mixture of such
                      experts
    float_linear      Matrices whose weights keep a floating-point format, each laid out for its fastest kernel
    fused             A packed matrix product and the operators around it as one call
    gguf_blocks       GGUF's blocks of quantized weights in torch: back to floats, or quant by quant into int4
                      groups of 32
    grammars          Grammars on the last stage: compiled beside the thread that computes, one matcher for each
                      slot
    int_linear        Matrices with weights of 8 and 4 bits, a class per kernel
    kernels           A test of which precisions this machine computes correctly, and how fast
    kv_cache          The KV cache of running sequences: one contiguous slot per sequence and layer, with room that
                      doubles
    linear            A stage's matrices in their computing format: `pack` a weight once, then call it on packed
                      rows
    norms             Normalization of rows, in fp32 whatever the rows' dtype
    paged_kv_cache    The KV cache on a GPU: one tensor per layer for all slots, which own blocks of it
    quantize          Rounding of weights to 8 and 4 bits, a few rows at a time, so that their wide copies stay in
                      the cache
    rotary            Rotary embeddings as tables: each pair of a head's values is a complex number that a position
                      rotates
    rows              Rows of activations as bytes on a link, and back: at full width, at half, or as int8 in
                      blocks
    sampler           Sampling on the last stage: penalties, temperature, truncation, and a reproducible draw
    saved_blocks      The blocks of one stage's KV cache that are on disk, so that prefixes survive the end of the
                      process
    stage_model       The computation of a stage's layers: one interface over the fast path and the compatibility
                      path
    steps             One stage's work on a step: moves, rows through its layers, and the frame for the next stage
    weights           One stage's tensors and no others: read by range, checked against the manifest, packed at its
                      precision
"""
