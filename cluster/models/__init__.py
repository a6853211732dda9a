"""Models on disk: files, hashes, shapes, families, tokenizers. Needs no torch.

Modules:
    bert_family        BERT and its relatives: the names of their parts, and the variants that are not supported
    card_settings      The parts of config.json in which families differ: activation, experts, rotary embeddings,
                       windows
    chat_format        How a model marks the parts of its answers that are not plain text: thoughts and tool calls
    chat_template      A model's chat template, which puts messages and tools into the model's format
    checkpoint         Names and shapes of a checkpoint's tensors, layer by layer and stage by stage
    compat_card        Cards of models that run on the compatibility path, and the tensors that a stage needs
    embedding_model    An embedding model on the controller's machine: its hashed files, and how its rows become
                       vectors
    end_tokens         The tokens that end an answer, which several files of a model name
    family             The families of the fast path as data: their differences from Llama, and the names in their
                       files
    folding            Simpler shapes of conversations, for chat templates that refuse the original one
    gguf_config        A GGUF's metadata as the config.json that a Hugging Face checkpoint of the same model has
    gguf_file          GGUF files on disk: metadata and the positions of tensors
    gguf_model         A GGUF model under Hugging Face's names: its tensors, and a folder like any checkpoint's
    gguf_tokenizer     A GGUF's vocabulary as the files of a Hugging Face checkpoint: tokenizer.json and its
                       companions
    grammar_check      A check whether a grammar compiles, before anything waits for it; llguidance decides
    layer_cost         The weights and the KV cache of a layer, in values and, at a precision, in bytes
    manifest           A model's identity, byte for byte: files and tensors with their SHA-256, and one digest over
                       them all
    model_card         A model's shape and cost in bytes, from its config.json
    model_config       Settings of a config.json: typed, with a family's defaults, and with errors that name the
                       setting
    pooling            How an embedding model's rows become one vector, from its sentence-transformers files
    rope               Rotary embeddings as in config.json: their base, the rotated share of a head, and how they
                       are stretched
    stage_spec         Which part of a model one stage holds, and in which form rows travel to the next stage
    store              Model files on this machine: found in a folder, pulled from Hugging Face, or fetched from
                       the controller
    template_process   The parent's side of a chat template, which is rendered in a process of its own with bounds
    template_renderer  `python -m cluster.models.template_renderer FD`: renders one chat template, as messages on a
                       socket ask
    text               Conversion between text and tokens: tokenizer, incremental detokenizer, stop strings
    tool_calls         How models write tool calls: parsers for streamed text, and grammars that allow nothing else
"""
