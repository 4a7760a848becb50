import dataclasses
import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig
from peft.utils.other import get_pattern_key

from soup_engine.adapters.peft_config import UNBUILT, USED, WITHOUT_EFFECT, parse_config
from soup_engine.errors import AdapterInvalidError

MINIMAL = {"peft_type": "LORA"}


def parse(**fields):
    return parse_config(json.dumps(MINIMAL | fields).encode())


def refusal(**fields) -> str:
    with pytest.raises(AdapterInvalidError) as refused:
        parse(**fields)
    return refused.value.message


def test_every_field_that_peft_knows_was_decided_on() -> None:
    known = {field.name for field in dataclasses.fields(LoraConfig)}
    assert known <= USED | WITHOUT_EFFECT | UNBUILT.keys()
    assert not USED & WITHOUT_EFFECT
    assert not (USED | WITHOUT_EFFECT) & UNBUILT.keys()


def test_absent_fields_have_pefts_defaults() -> None:
    config, default = parse(), LoraConfig()
    assert (config.rank, config.alpha) == (default.r, default.lora_alpha)
    assert config.scaling_of("any") == 1.0
    assert (config.use_rslora, config.use_dora, config.fan_in_fan_out) == (False, False, False)
    assert config.base is None


@pytest.mark.parametrize("name", sorted(UNBUILT))
def test_what_is_not_built_is_refused_by_name(name: str) -> None:
    assert refusal(**{name: [1]}).startswith(f"{name} asks for ")
    for nothing in (None, False, [], {}):
        parse(**{name: nothing})


@pytest.mark.parametrize(
    "value", ["pissa", "pissa_niter_16", "olora", "OLoRA", "corda", "loftq", "lora_ga"]
)
def test_initialisations_that_change_the_base_are_refused(value: str) -> None:
    message = refusal(init_lora_weights=value)
    assert repr(value.lower()) in message
    assert "path_initial_model_for_weight_conversion" in message


@pytest.mark.parametrize(
    "value", [True, False, None, "gaussian", "eva", "orthogonal", "mica", "Gaussian"]
)
def test_initialisations_that_leave_the_base_alone_are_accepted(value) -> None:
    parse(init_lora_weights=value, eva_config={"rho": 2.0}, corda_config={"cache_file": "x"})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"init_lora_weights": "newest"}, "'newest' is not known here"),
        ({"peft_type": "LOHA"}, "peft_type 'LOHA'"),
        ({"peft_type": None}, "peft_type None"),
        ({"task_type": "SEQ_CLS"}, "task_type 'SEQ_CLS'"),
        ({"bias": "all"}, "bias='all'"),
        ({"bias": "lora_only"}, "bias='lora_only'"),
        ({"brand_new": {"a": 1}}, "a field 'brand_new' that is not known here"),
        ({"r": 0}, "r is 0"),
        ({"r": True}, "r is True"),
        ({"r": 2.0}, "r is 2.0"),
        ({"r": None}, "r is None"),
        ({"lora_alpha": "8"}, "lora_alpha is '8'"),
        ({"lora_alpha": False}, "lora_alpha is False"),
        ({"lora_alpha": float("inf")}, "lora_alpha is inf"),
        ({"use_dora": 1}, "use_dora is 1"),
        ({"rank_pattern": [4]}, "rank_pattern is not a JSON object"),
        ({"rank_pattern": {"q_proj": 0}}, r"rank_pattern['q_proj'] is 0"),
        ({"alpha_pattern": {"q_proj": None}}, r"alpha_pattern['q_proj'] is None"),
        ({"rank_pattern": {"(": 4}}, "'(', which is no regular expression"),
        ({"modules_to_save": "lm_head"}, "modules_to_save is not a list of names"),
        ({"modules_to_save": [""]}, "modules_to_save is not a list of names"),
        ({"base_model_name_or_path": 3}, "base_model_name_or_path is not text"),
        ({"target_modules": 3}, "target_modules is neither a text nor a list of texts"),
        ({"target_modules": "("}, "target_modules holds '(', which is no regular expression"),
        ({"target_modules": "(a+)+b"}, "target_modules holds a pattern that may take for ever"),
        ({"exclude_modules": [3]}, "exclude_modules is neither a text nor a list of texts"),
        ({"layers_to_transform": [True]}, "layers_to_transform is neither a whole number nor"),
        ({"layers_pattern": "layers"}, "layers_pattern goes with layers_to_transform only"),
        (
            {"target_modules": ".*", "layers_to_transform": 1},
            "layers_to_transform and layers_pattern go with a list of target_modules only",
        ),
    ],
)
def test_wrong_values_are_refused_with_their_name(fields, message: str) -> None:
    assert message in refusal(**fields)


def test_unknown_fields_that_ask_for_nothing_are_accepted() -> None:
    parse(future=None, another=False, more=[], nested={}, number=0, text="")


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b"1" * 5000])
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(AdapterInvalidError, match=r"adapter_config\.json"):
        parse_config(raw)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(.*a){9}", ".*a" * 7, "a" * 4097])
def test_patterns_that_may_never_end_are_refused(pattern: str) -> None:
    started = time.monotonic()
    assert "may take for ever" in refusal(rank_pattern={pattern: 4})
    assert time.monotonic() - started < 1.0


PIECES = ["model", "layers", "0", "1", "10", "self_attn", "q_proj", "k_proj", "mlp"]
NAMES = st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map(".".join)
PATTERNS = NAMES | st.sampled_from(
    ["^model", r".*\.0\..*", "q_proj", "proj", "(q|k)_proj", r"layers\.[01]\.mlp", ".*", "$", "0.q"]
)


@given(patterns=st.dictionaries(PATTERNS, st.integers(1, 64), max_size=4), name=NAMES)
def test_patterns_are_resolved_as_peft_does(patterns: dict[str, int], name: str) -> None:
    config = parse(r=3, lora_alpha=5, rank_pattern=patterns, alpha_pattern=patterns)
    expected = patterns.get(get_pattern_key(patterns.keys(), name))
    assert config.rank_of(name) == (3 if expected is None else expected)
    if expected is None:
        assert config.scaling_of(name) == 5 / 3
    else:
        assert config.scaling_of(name) == 1.0


def test_name_with_special_characters_is_found_as_itself() -> None:
    config = parse(rank_pattern={"a[0]": 2})
    assert re.match("a[0]$", "a[0]") is None
    assert config.rank_of("a[0]") == 2
