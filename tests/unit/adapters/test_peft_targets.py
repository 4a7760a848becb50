"""Which modules a configuration names is what PEFT makes of it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists

from soup_engine.adapters.peft_targets import parse_targets

PIECES = ["model", "layers", "h", "0", "1", "10", "self_attn", "q_proj", "k_proj", "mlp", "lm_head"]
MODULES = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map(".".join)
NAMES = st.lists(MODULES, min_size=1, max_size=3)
PATTERNS = st.sampled_from(
    [".*", ".*q_proj", r"model\.layers\.[01]\..*", "(.*\\.)?(q|k)_proj", "q_proj", "x"]
)


@given(
    target=NAMES | PATTERNS,
    exclude=st.none() | NAMES | PATTERNS,
    layers=st.none() | st.integers(0, 2) | st.lists(st.integers(0, 10), max_size=3),
    layer_patterns=st.none() | st.sampled_from(["layers", "h", "model.layers", ["h", "layers"]]),
    saved=st.none() | NAMES,
    module=MODULES,
)
def test_modules_are_chosen_as_peft_does(
    target: Any, exclude: Any, layers: Any, layer_patterns: Any, saved: Any, module: str
) -> None:
    fields = {"target_modules": target, "exclude_modules": exclude, "modules_to_save": saved}
    if not isinstance(target, str) and layers is not None:
        fields |= {"layers_to_transform": layers, "layers_pattern": layer_patterns}
    expected = check_target_module_exists(LoraConfig(**fields), module)
    excluded = type(expected).__name__ == "_ExcludedModule"
    targets = parse_targets(fields, saved=tuple(saved or ()), tied=False)
    assert targets.names(module) == (bool(expected) and not excluded)
    assert targets.allows(module) == (not excluded)
