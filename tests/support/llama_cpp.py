"""Runs a GGUF file in llama.cpp (xllamacpp), in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

RUN = """
import json, sys, urllib.request
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, request = sys.argv[1], json.loads(sys.argv[2])
params.n_ctx, params.n_parallel, params.warmup = 512, 1, False
params.hostnames, params.port, params.cpuparams.n_threads = ["127.0.0.1"], 0, 1
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
if len(sys.argv) > 3:
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(sys.argv[3], 1.0)]
server = xllamacpp.Server(params)
def ask(path, body):
    call = urllib.request.Request(server.listening_address + path, json.dumps(body).encode(),
                                  {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(call))
chats = [ask("/v1/chat/completions", {"messages": [{"role": "user", "content": text}],
             "max_tokens": request["tokens"], "temperature": 0})["choices"][0]["message"]["content"]
         for text in request.get("chats", [])]
texts = [ask("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
         for text in request.get("texts", [])]
plain = ask("/tokenize", {"content": "a"})["tokens"][-1]
steps, tokens = [], request.get("prompt")
for _ in range(request["tokens"] if tokens else 0):
    # A token that is part of a character is told without probabilities, so a plain one is forced;
    # probabilities are those before that.
    done = ask("/completion", {"prompt": tokens, "n_predict": 1, "temperature": 0, "n_probs": 8,
                               "logit_bias": [[plain, 1e6]], "cache_prompt": True})
    top = done["completion_probabilities"][0]["top_logprobs"]
    steps.append([[item["id"], item["logprob"]] for item in top])
    tokens = [*tokens, top[-1]["id"]]
print("ANSWER", json.dumps({"texts": texts, "steps": steps, "chats": chats}))
"""


def run_llama_cpp(path: Path, request: dict[str, Any], *lora: Path) -> Any:
    """Ask a model.

    Args:
        request: ``tokens``, the length of answers; ``texts`` to tokenise; ``chats``, questions;
            ``prompt``, ids of tokens.
        lora: a LoRA file to use beside it.

    Returns:
        ``texts``, the ids of each; ``chats``, the answers; ``steps`` after the prompt, each the
        most likely tokens, best first, with their log-probabilities; the last of
        them was taken, for the best may always be the same one in a random model.
    """
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(path), json.dumps(request), *map(str, lora)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = (line for line in done.stdout.splitlines() if line.startswith("ANSWER "))
    return json.loads(next(lines).removeprefix("ANSWER "))
