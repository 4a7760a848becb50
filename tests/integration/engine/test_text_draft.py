"""A draft model with another tokenizer: the target's own weights under other token ids.

Both answer in printable ASCII, so that text carries everything. What the draft model proposes is
then what the target answers, if the way through text is right.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from soup_engine.config import EngineConfig, ModelConfig, SpeculativeConfig
from soup_engine.engine.drafting import build_proposer, common_vocabulary, load_draft
from soup_engine.engine.speculation import Speculation
from soup_engine.messages import DraftCounts
from soup_engine.model.loader import LoadedModel, load_model
from soup_engine.model.text_draft import TextDraftProposer
from tests.support.equality import make_engine, request, run
from tests.support.tiny_models import VOCAB, byte_tokenizer, make_model

SPECIAL = ("<bos>", "<eos>", "<pad>")


def reversed_tokenizer() -> PreTrainedTokenizerFast:
    """The bytes of ``byte_tokenizer`` under ids that count down, behind the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True)
    vocab = {text: i for i, text in enumerate(SPECIAL)}
    vocab |= {char: i for i, char in enumerate(alphabet, start=len(SPECIAL))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, Path]:
    """The target, and the folder of its draft."""
    ours, theirs = byte_tokenizer(), reversed_tokenizer()
    model = make_model("llama", seed=4)
    head = model.get_output_embeddings().weight
    printable = {ours.convert_tokens_to_ids(chr(code)) for code in range(33, 127)}
    with torch.no_grad():
        head[[token for token in range(VOCAB) if token not in printable]] = 0.0
    folders = [tmp_path_factory.mktemp(name) for name in ("target", "draft")]
    model.save_pretrained(folders[0])
    ours.save_pretrained(folders[0])
    names = {token: text for text, token in ours.get_vocab().items()}
    order = torch.arange(VOCAB)
    for token, text in names.items():
        order[theirs.get_vocab()[text]] = token
    with torch.no_grad():
        for weight in (model.get_input_embeddings().weight, head):
            weight.copy_(weight[order].clone())
    model.save_pretrained(folders[1])
    theirs.save_pretrained(folders[1])
    config = ModelConfig(path=str(folders[0]), dtype="float32", device="cpu")
    return load_model(config, lambda _stage, _share: None), folders[1]


def test_drafts_go_through_text(pair: tuple[LoadedModel, Path]) -> None:
    target, folder = pair
    settings = EngineConfig(model=ModelConfig(path=target.source))
    draft = load_draft(
        SpeculativeConfig(draft_model=str(folder)), target, settings.model, lambda *_: None
    )
    assert draft.common_vocab is None
    assert any("another tokenizer" in note for note in draft.notes)

    ids = byte_tokenizer()
    prompts = [tuple(ids.encode(text)) for text in ("Once upon a time", "x", "abc " * 20)]
    arrivals = [(n, request(n, prompt, 50)) for n, prompt in enumerate(prompts)]
    arrivals.append((0, request(3, prompts[0], 30, temperature=1.0, seed=3)))
    plain = run(make_engine(target), arrivals)
    engine = make_engine(target, max_num_batched_tokens=32)
    proposer = build_proposer(draft, target, settings, engine.capacity, engine.runner.sampler)
    assert isinstance(proposer, TextDraftProposer)
    engine.speculation = Speculation(
        SpeculativeConfig(draft_model="x", always=True),
        proposer,
        max_model_len=engine.capacity.max_model_len,
    )
    assisted = run(engine, arrivals)
    for name, answer in plain.items():
        assert assisted[name].token_ids == answer.token_ids
    for name in ("r0", "r1", "r2"):
        counts = assisted[name].drafts or DraftCounts()
        assert counts.drafted > 20
        assert counts.accepted > 0.9 * counts.drafted
    assert not proposer._translations
    proposer._draft.check_integrity()


def test_tokenizers_are_told_apart(pair: tuple[LoadedModel, Path]) -> None:
    target, folder = pair
    assert common_vocabulary(target, target) == 259
    draft = AutoModelForCausalLM.from_pretrained(folder)
    assert draft.config.vocab_size == VOCAB  # the size says nothing
