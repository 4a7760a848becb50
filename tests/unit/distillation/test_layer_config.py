from __future__ import annotations

import itertools

import pytest

from soup_engine.distillation.layer_config import kept_config
from soup_engine.distillation.shrink import spread_layers
from soup_engine.errors import DraftError


def test_layers_are_spread_evenly() -> None:
    assert spread_layers(30, 8) == (0, 4, 8, 12, 17, 21, 25, 29)
    assert spread_layers(3, 2) == (0, 2)
    assert spread_layers(5, 1) == (0,)
    for count in range(2, 30):
        found = spread_layers(30, count)
        gaps = [after - before for before, after in itertools.pairwise(found)]
        assert len(found) == count
        assert (found[0], found[-1]) == (0, 29)
        assert min(gaps) >= 1
        assert max(gaps) - min(gaps) <= 1


def test_what_goes_by_layers_is_cut_with_them() -> None:
    config = {
        "n_layer": 4,
        "layer_types": ["old", "old", "old", "old"],
        "no_rope_layers": [1, 1, 0, 1],
        "max_window_layers": 3,
        "eos_token_id": [1, 2, 3, 4],
        "architectures": ["A"],
        "moe_layer_freq": 1,
    }
    new = kept_config(config, "n_layer", (0, 2, 3), ["a", "b", "c", "d"])
    assert new == {
        "n_layer": 3,
        "layer_types": ["a", "c", "d"],
        "no_rope_layers": [1, 0, 1],
        "max_window_layers": 2,
        "eos_token_id": [1, 2, 3, 4],
        "architectures": ["A"],
        "moe_layer_freq": 1,
    }
    assert config["n_layer"] == 4


def test_what_cannot_be_carried_over_is_refused_by_name() -> None:
    with pytest.raises(DraftError, match="decoder_sparse_step"):
        kept_config({"n": 4, "decoder_sparse_step": 2}, "n", (0, 3), None)
    with pytest.raises(DraftError, match="scale_by_depth"):
        kept_config({"n": 4, "scale_by_depth": [1, 2, 3, 4]}, "n", (0, 3), None)
