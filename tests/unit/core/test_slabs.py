import pytest

from soup_engine.core.plan import CreateSlab, FreeSlab, MoveRow
from soup_engine.core.sequence import RowRef
from soup_engine.core.slabs import SlabPool, row_capacities
from soup_engine.errors import InsufficientMemoryError


def make_pool(num_tokens: int, *, slab_tokens: int = 512, max_model_len: int = 512) -> SlabPool:
    return SlabPool(
        num_tokens,
        block_size=16,
        slab_tokens=slab_tokens,
        max_num_seqs=8,
        max_model_len=max_model_len,
        operations=[],
    )


@pytest.fixture
def place(make_sequence):
    """Places a new sequence of so many tokens, all computed; ``None`` when memory is short."""
    ids = iter(range(1000))

    def place(pool: SlabPool, num_tokens: int):
        sequence = make_sequence(next(ids), [0] * num_tokens)
        if not pool.place(sequence, num_tokens):
            return None
        sequence.num_computed_tokens = num_tokens
        return sequence

    return place


@pytest.mark.parametrize(
    ("max_model_len", "expected"),
    [
        (2, (16,)),
        (64, (64,)),
        (65, (64, 80)),
        (512, (64, 128, 256, 512)),
        (1000, (64, 128, 256, 512, 1008)),
    ],
)
def test_capacities_double_up_to_the_longest_sequence(max_model_len, expected) -> None:
    assert row_capacities(max_model_len, 16) == expected


def test_budget_below_one_longest_row_is_refused() -> None:
    with pytest.raises(InsufficientMemoryError, match=r"room for 511 tokens, but one .* takes 512"):
        make_pool(511)
    make_pool(512)


def test_rows_are_filled_densely_slab_by_slab(place) -> None:
    pool = make_pool(8192)
    sequences = [place(pool, 100) for _ in range(5)]
    assert [s.row for s in sequences] == [*(RowRef(0, i) for i in range(4)), RowRef(1, 0)]
    assert pool.operations == [CreateSlab(0, 4, 128), CreateSlab(1, 4, 128)]
    assert pool.num_created_tokens == 1024
    assert pool.num_used_tokens == 5 * 128
    pool.check_integrity(sequences)


def test_hole_is_filled_with_the_last_row_of_the_class(place) -> None:
    pool = make_pool(8192)
    first, second, *others = [place(pool, 100) for _ in range(5)]
    others[-1].num_computed_tokens = 77
    pool.operations.clear()
    pool.release(second)
    assert second.row is None
    assert others[-1].row == RowRef(0, 1)
    assert pool.operations == [MoveRow(RowRef(1, 0), RowRef(0, 1), 77)]
    pool.check_integrity([first, *others])


def test_row_with_nothing_computed_is_moved_without_copying(place) -> None:
    pool = make_pool(8192)
    first, second = place(pool, 100), place(pool, 100)
    second.num_computed_tokens = 0
    pool.operations.clear()
    pool.release(first)
    assert second.row == RowRef(0, 0)
    assert pool.operations == []


def test_sequence_moves_to_the_next_class_when_it_outgrows_its_row(place) -> None:
    pool = make_pool(8192)
    first, second = place(pool, 128), place(pool, 100)
    pool.operations.clear()
    assert pool.grow(first, 128)
    assert pool.operations == []
    assert pool.grow(first, 129)
    assert pool.operations == [
        CreateSlab(1, 2, 256),
        MoveRow(RowRef(0, 0), RowRef(1, 0), 128),
        MoveRow(RowRef(0, 1), RowRef(0, 0), 100),
    ]
    assert (first.row, second.row) == (RowRef(1, 0), RowRef(0, 0))
    pool.check_integrity([first, second])


def test_last_emptied_slab_is_used_again(place) -> None:
    pool = make_pool(8192)
    pool.release(place(pool, 100))
    pool.operations.clear()
    again = place(pool, 90)
    assert again.row == RowRef(0, 0)
    assert pool.operations == []
    pool.check_integrity([again])


def test_one_empty_slab_of_each_class_is_kept(place) -> None:
    pool = make_pool(8192)
    rows = [place(pool, 60)]
    while rows[-1].row.slab == 0:
        rows.append(place(pool, 60))
    long = place(pool, 200)
    pool.operations.clear()
    pool.release(long)
    for sequence in rows:
        pool.release(sequence)
    assert [type(operation) for operation in pool.operations if type(operation) is not MoveRow] == [
        FreeSlab
    ]
    pool.check_integrity([])
    pool.operations.clear()
    again = [place(pool, 60), place(pool, 200)]
    assert pool.operations == []
    pool.check_integrity(again)


def test_empty_slab_is_freed_before_memory_is_short(place) -> None:
    pool = make_pool(512)
    pool.release(place(pool, 60))
    pool.operations.clear()
    longest = place(pool, 512)
    assert pool.operations == [FreeSlab(0), CreateSlab(1, 1, 512)]
    pool.check_integrity([longest])


def test_slab_has_fewer_rows_when_memory_is_short(place) -> None:
    pool = make_pool(4096)
    longest = [place(pool, 512) for _ in range(7)]
    pool.operations.clear()
    more = [place(pool, 128) for _ in range(4)]
    assert pool.operations == [CreateSlab(7, 4, 128)]
    assert place(pool, 128) is None
    pool.release(more.pop())
    pool.check_integrity([*longest, *more])

    pool = make_pool(4096 + 64)
    longest = [place(pool, 512) for _ in range(8)]
    pool.operations.clear()
    more = [place(pool, 50)]
    assert pool.operations == [CreateSlab(8, 1, 64)]
    pool.check_integrity([*longest, *more])


def test_unused_longer_row_is_better_than_none(place) -> None:
    pool = make_pool(4096, slab_tokens=512)
    sequences = [place(pool, 512) for _ in range(7)] + [place(pool, 256)]
    pool.operations.clear()
    short = place(pool, 10)
    assert short.row == RowRef(7, 1)
    assert pool.operations == []
    assert place(pool, 10) is None
    pool.check_integrity([*sequences, short])


def test_failed_growth_changes_nothing(place) -> None:
    pool = make_pool(512)
    sequences = [place(pool, 64) for _ in range(4)]
    pool.operations.clear()
    rows = [s.row for s in sequences]
    assert not pool.grow(sequences[0], 300)
    assert [s.row for s in sequences] == rows
    assert pool.operations == []
    pool.check_integrity(sequences)


def test_integrity_check_sees_a_sequence_in_a_wrong_row(place) -> None:
    pool = make_pool(8192)
    first, second = place(pool, 100), place(pool, 100)
    second.row = first.row
    with pytest.raises(AssertionError, match="elsewhere"):
        pool.check_integrity([first, second])


def test_integrity_check_sees_a_row_that_nobody_owns(place) -> None:
    pool = make_pool(8192)
    first = place(pool, 100)
    place(pool, 100)
    with pytest.raises(AssertionError, match="rows and running sequences differ"):
        pool.check_integrity([first])
