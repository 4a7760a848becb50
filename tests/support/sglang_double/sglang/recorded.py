"""Names that the real package knows."""

from __future__ import annotations

SERVER_FIELDS = frozenset(
    (
        *("model_path", "trust_remote_code", "device", "dtype", "max_running_requests"),
        *("skip_tokenizer_init", "incremental_streaming_output", "stream_interval"),
        *("sampling_defaults", "enable_metrics", "log_level", "host", "port", "api_key"),
        *("kv_cache_dtype", "disable_radix_cache", "context_length", "mem_fraction_static"),
        *("max_total_tokens", "tp_size", "pp_size", "dp_size", "use_ray", "enable_lora"),
        *("max_loras_per_batch", "max_lora_rank", "lora_target_modules", "lora_strict_loading"),
        *("lora_backend", "disable_overlap_schedule", "speculative_algorithm"),
        *("speculative_draft_model_path", "speculative_eagle_topk", "speculative_num_steps"),
        *("speculative_num_draft_tokens", "speculative_ngram_max_bfs_breadth"),
        "speculative_ngram_max_trie_depth",
    )
)
REQUEST_FIELDS = frozenset(
    (
        *("rid", "input_ids", "sampling_params", "stream", "return_logprob"),
        *("top_logprobs_num", "lora_path", "cache_salt"),
    )
)
SAMPLING_FIELDS = frozenset(
    (
        *("max_new_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty"),
        *("frequency_penalty", "repetition_penalty", "logit_bias", "stop_token_ids", "ignore_eos"),
    )
)
ADAPTER_FIELDS = frozenset(("lora_name", "lora_path"))
