"""A tiny random model as a folder and as a GGUF file, with adapters of both kinds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import openai
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from soup_engine.backends.base import Backend
from soup_engine.backends.factory import create_backend
from soup_engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from soup_engine.export.gguf import GgufLoraRequest, GgufRequest, export_gguf, export_gguf_lora
from soup_engine.export.progress import Silent
from soup_engine.runtime import Runtime
from tests.support.adapters import make_adapter
from tests.support.tokenizers import byte_level, sentencepiece_like

CONTEXT = 256
TEMPLATE = "{% for m in messages %}<bos>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
TOKENIZERS = {
    "bytes": byte_level,
    "pieces": lambda: sentencepiece_like(prefix=True),
}


@dataclass(frozen=True, slots=True)
class TwoForms:
    """Attributes:
    folder, file: the same weights.
    """

    folder: Path
    file: Path

    def adapter(self, name: str, *, seed: int) -> tuple[Path, Path]:
        """An adapter as a folder and as a file."""
        folder = make_adapter(
            self.folder,
            self.folder.parent / name,
            seed=seed,
            strength=0.15,
            r=4,
            target_modules=["q_proj", "v_proj", "down_proj"],
        )
        file = folder.with_suffix(".gguf")
        export_gguf_lora(GgufLoraRequest(adapter=folder, base=self.folder, output=file), Silent())
        return folder, file


def make_two_forms(folder: Path, tokenizer: str) -> TwoForms:
    """A model that writes printable ASCII: by chance, it would write parts of characters mostly."""
    text = TOKENIZERS[tokenizer]()
    text.chat_template = TEMPLATE
    config = LlamaConfig(
        vocab_size=len(text) + 1,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=text.bos_token_id,
        eos_token_id=text.eos_token_id,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.3)
        for token_id, row in enumerate(model.get_output_embeddings().weight):
            written = text.decode([token_id], skip_special_tokens=True)
            if not (written.isascii() and written.isprintable() and written):
                row.zero_()
    model.save_pretrained(folder / "model")
    text.save_pretrained(folder / "model")
    file = folder / "tiny.gguf"
    export_gguf(GgufRequest(model=folder / "model", output=file, quant="f32"), Silent())
    return TwoForms(folder / "model", file)


def make_backend(path: Path, backend: str) -> Backend:
    """Either form in float32, with room for four requests."""
    return create_backend(
        EngineConfig(
            model=ModelConfig(
                path=str(path),
                device="cpu",
                dtype="float32" if backend == "transformers" else None,
                served_name="tiny",
            ),
            backend=backend,
            cache=CacheConfig(kv_type="f32", memory_bytes=1 << 26),
            scheduler=SchedulerConfig(max_num_seqs=4),
        )
    )


def client_of(runtime: Runtime) -> openai.OpenAI:
    """Asks what a runtime serves."""
    return openai.OpenAI(base_url=f"{runtime.address}/v1", api_key="unused", max_retries=0)
