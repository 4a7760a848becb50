import pytest

from soup_engine.core.blocks import PrefixStore, block_hashes, root_hash

BASE = b""


def chain(name: str, length: int) -> list[bytes]:
    return [f"{name}{i}".encode() for i in range(length)]


@pytest.fixture
def store():
    store = PrefixStore(4)
    yield store
    store.check_integrity()


def test_roots_differ_by_adapter_and_salt() -> None:
    roots = [
        root_hash(b"", None),
        root_hash(b"", ""),
        root_hash(b"", "a"),
        root_hash(b"a", None),
        root_hash(b"a", ""),
        root_hash(b"\x01a", None),
    ]
    assert len(set(roots)) == len(roots)


def test_block_hash_depends_on_everything_before_it(make_sequence) -> None:
    tokens = list(range(12))
    plain = block_hashes(make_sequence(0, tokens), 3, 4)
    assert plain == block_hashes(make_sequence(1, tokens), 3, 4)
    assert len(set(plain)) == 3
    other_start = block_hashes(make_sequence(2, [9, *tokens[1:]]), 3, 4)
    other_middle = block_hashes(make_sequence(3, [*tokens[:5], 9, *tokens[6:]]), 3, 4)
    assert not set(plain) & set(other_start)
    assert [a == b for a, b in zip(plain, other_middle, strict=True)] == [True, False, False]
    assert not set(plain) & set(block_hashes(make_sequence(4, tokens, adapter_hash=b"a"), 3, 4))
    assert not set(plain) & set(block_hashes(make_sequence(5, tokens, cache_salt="s"), 3, 4))


def test_block_hashes_are_computed_once_and_continued(make_sequence) -> None:
    sequence = make_sequence(0, list(range(8)))
    first = block_hashes(sequence, 2, 4)
    sequence.token_ids[0] = 99  # not looked at again
    sequence.token_ids += [8, 9, 10, 11]
    assert block_hashes(sequence, 3, 4)[:2] == first
    assert block_hashes(sequence, 1, 4) == first[:1]
    assert block_hashes(sequence, 3, 4) == block_hashes(make_sequence(1, list(range(12))), 3, 4)


def test_longest_kept_chain_is_matched(store: PrefixStore) -> None:
    assert store.match(chain("a", 3)) == ()
    assert store.extend(chain("a", 3), BASE) == (0, (0, 1, 2))
    assert store.match(chain("a", 4)) == (0, 1, 2)
    assert store.match([*chain("a", 2), b"other"]) == (0, 1)
    assert store.extend(chain("a", 4), BASE) == (3, (3,))
    assert store.extend(chain("a", 4), BASE) == (4, ())
    assert store.num_used == 4


def test_least_recently_used_leaf_is_evicted_first(store: PrefixStore) -> None:
    store.extend(chain("a", 2), BASE)
    store.extend(chain("b", 2), BASE)
    store.match(chain("a", 2))
    store.extend(chain("c", 1), BASE)
    assert len(store.match(chain("b", 2))) == 1
    assert len(store.match(chain("a", 2))) == 2


def test_parent_is_evicted_by_its_own_last_use(store: PrefixStore) -> None:
    store.extend(chain("old", 2), BASE)
    store.extend(chain("new", 2), BASE)
    store.extend(chain("x", 2), BASE)
    assert store.match(chain("old", 2)) == ()
    assert len(store.match(chain("new", 2))) == 2


def test_store_smaller_than_a_chain_keeps_its_start(store: PrefixStore) -> None:
    first, added = store.extend(chain("a", 9), BASE)
    assert first == 0
    assert len(added) == 4
    assert len(store.match(chain("a", 9))) == 4
    assert store.extend(chain("a", 9), BASE) == (4, ())


def test_pinned_chain_is_not_evicted(store: PrefixStore) -> None:
    store.extend(chain("a", 3), BASE)
    store.pin(store.match(chain("a", 3)))
    assert len(store.extend(chain("b", 4), BASE)[1]) == 1
    assert len(store.match(chain("a", 3))) == 3
    store.check_integrity()
    store.unpin_all()
    assert len(store.extend(chain("c", 4), BASE)[1]) == 4


def test_blocks_of_forgotten_adapters_go_first(store: PrefixStore) -> None:
    store.extend(chain("base", 2), BASE)
    store.extend(chain("adapter", 2), b"adapter")
    store.forget_adapter(b"adapter")
    store.check_integrity()
    store.extend(chain("x", 2), BASE)
    assert store.match(chain("adapter", 2)) == ()
    assert len(store.match(chain("base", 2))) == 2


def test_forgotten_blocks_that_are_used_again_are_kept(store: PrefixStore) -> None:
    store.extend(chain("adapter", 2), b"adapter")
    store.extend(chain("base", 2), BASE)
    store.forget_adapter(b"adapter")
    assert len(store.match(chain("adapter", 2))) == 2
    store.extend(chain("x", 2), BASE)
    assert len(store.match(chain("adapter", 2))) == 2
    assert store.match(chain("base", 2)) == ()


def test_store_of_no_blocks_keeps_nothing() -> None:
    store = PrefixStore(0)
    assert store.extend(chain("a", 2), BASE) == (0, ())
    assert store.match(chain("a", 2)) == ()
    store.check_integrity()


def test_integrity_check_sees_a_wrong_refcount() -> None:
    store = PrefixStore(4)
    store.extend(chain("a", 2), BASE)
    store.pin(store.match(chain("a", 1)))
    store._pinned.clear()
    with pytest.raises(AssertionError, match="block 0 has refcount 2, not 1"):
        store.check_integrity()
