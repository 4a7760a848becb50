import pytest

from soup_engine.config import CacheConfig
from soup_engine.core.kv_cache_manager import KVCacheManager
from soup_engine.core.plan import CreateSlab, LoadBlocks, SaveBlocks
from soup_engine.core.sequence import RowRef
from soup_engine.errors import InsufficientMemoryError

PROMPT = list(range(40))


def make_manager(num_prefix_blocks: int = 16) -> KVCacheManager:
    return KVCacheManager(
        num_row_tokens=4096,
        num_prefix_blocks=num_prefix_blocks,
        block_size=16,
        slab_tokens=512,
        max_num_seqs=8,
        max_model_len=256,
    )


def compute(sequence) -> None:
    sequence.num_computed_tokens = sequence.num_tokens


def serve(manager: KVCacheManager, sequence) -> None:
    """Admit, compute and free a sequence, with its operations carried out."""
    assert manager.allocate(sequence)
    compute(sequence)
    manager.free(sequence)
    manager.take_operations()


def test_full_blocks_are_saved_and_loaded_into_the_next_row(make_sequence) -> None:
    manager = make_manager()
    first = make_sequence(0, PROMPT)
    assert manager.allocate(first)
    assert (first.num_computed_tokens, first.num_cached_tokens) == (0, 0)
    compute(first)
    manager.save_prefix(first)
    second = make_sequence(1, [*PROMPT[:32], 7, 7])
    assert manager.allocate(second)
    assert manager.take_operations() == (
        CreateSlab(0, 8, 64),
        SaveBlocks(RowRef(0, 0), 0, (0, 1)),
        LoadBlocks((0, 1), RowRef(0, 1)),
    )
    assert (second.num_computed_tokens, second.num_cached_tokens) == (32, 32)
    assert (manager.prefix_queries, manager.prefix_hits) == (74, 32)
    manager.check_integrity([first, second])


def test_blocks_are_saved_once(make_sequence) -> None:
    manager = make_manager()
    sequence = make_sequence(0, PROMPT)
    assert manager.allocate(sequence)
    compute(sequence)
    manager.save_prefix(sequence)
    manager.take_operations()
    manager.save_prefix(sequence)
    assert not manager.has_operations
    sequence.token_ids += list(range(20))
    compute(sequence)
    manager.free(sequence)
    assert manager.take_operations() == (SaveBlocks(RowRef(0, 0), 2, (2,)),)


def test_one_token_is_always_left_to_compute(make_sequence) -> None:
    manager = make_manager()
    serve(manager, make_sequence(0, PROMPT))
    again = make_sequence(1, PROMPT[:32])
    assert manager.allocate(again)
    assert again.num_computed_tokens == 16


@pytest.mark.parametrize("other", [{"adapter_hash": b"a"}, {"cache_salt": "s"}])
def test_other_adapters_and_salts_see_no_blocks(make_sequence, other) -> None:
    manager = make_manager()
    serve(manager, make_sequence(0, PROMPT))
    stranger = make_sequence(1, PROMPT, **other)
    assert manager.allocate(stranger)
    assert stranger.num_computed_tokens == 0


def test_drafts_are_not_saved(make_sequence) -> None:
    manager = make_manager()
    sequence = make_sequence(0, list(range(30)))
    assert manager.allocate(sequence)
    sequence.num_computed_tokens = 33  # three drafts on top, not accepted yet
    manager.save_prefix(sequence)
    assert manager.take_operations()[-1] == SaveBlocks(RowRef(0, 0), 0, (0,))


def test_nothing_is_kept_of_a_sequence_that_failed(make_sequence) -> None:
    manager = make_manager()
    sequence = make_sequence(0, PROMPT)
    assert manager.allocate(sequence)
    compute(sequence)
    manager.free(sequence, keep_prefix=False)
    assert manager.usage().prefix_blocks_used == 0
    manager.check_integrity([])


def test_no_prefix_blocks_switch_reuse_off(make_sequence) -> None:
    manager = make_manager(num_prefix_blocks=0)
    serve(manager, make_sequence(0, PROMPT))
    again = make_sequence(1, PROMPT)
    assert manager.allocate(again)
    assert again.num_computed_tokens == 0
    assert not manager.has_operations
    assert again.block_hashes == []


def test_readmission_does_not_count_as_a_cache_hit(make_sequence) -> None:
    manager = make_manager()
    sequence = make_sequence(0, PROMPT)
    assert manager.allocate(sequence)
    compute(sequence)
    manager.free(sequence)
    sequence.preemptions = 1
    assert manager.allocate(sequence)
    assert (sequence.num_computed_tokens, sequence.num_cached_tokens) == (32, 0)
    assert manager.prefix_hits == 0


def test_usage_counts_rows_and_blocks(make_sequence) -> None:
    manager = make_manager()
    serve(manager, make_sequence(0, PROMPT))
    assert manager.allocate(make_sequence(1, PROMPT))
    usage = manager.usage()
    assert (usage.row_blocks_total, usage.row_blocks_created, usage.row_blocks_used) == (256, 32, 4)
    assert (usage.prefix_blocks_total, usage.prefix_blocks_used) == (16, 2)
    assert usage.used_fraction == pytest.approx(6 / 272)


def test_reset_forgets_everything(make_sequence) -> None:
    manager = make_manager()
    serve(manager, make_sequence(0, PROMPT))
    assert manager.allocate(make_sequence(1, PROMPT))
    manager.reset()
    assert not manager.has_operations
    usage = manager.usage()
    assert usage.row_blocks_created == usage.prefix_blocks_used == 0
    manager.check_integrity([])


def from_config(memory_bytes: int, **settings) -> KVCacheManager:
    return KVCacheManager.from_config(
        CacheConfig(**settings),
        memory_bytes=memory_bytes,
        bytes_per_token=100,
        max_num_seqs=8,
        max_model_len=1024,
    )


def test_budget_is_split_between_rows_and_prefix_store() -> None:
    usage = from_config(100 * 16 * 400).usage()
    assert (usage.row_blocks_total, usage.prefix_blocks_total) == (300, 100)
    usage = from_config(100 * 16 * 400, prefix_caching=False).usage()
    assert (usage.row_blocks_total, usage.prefix_blocks_total) == (400, 0)


def test_one_longest_row_goes_before_the_prefix_store() -> None:
    usage = from_config(100 * 16 * 70).usage()
    assert (usage.row_blocks_total, usage.prefix_blocks_total) == (64, 6)
    with pytest.raises(InsufficientMemoryError, match="max-model-len 1024"):
        from_config(100 * 16 * 63)
